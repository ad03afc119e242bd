//! The cases of `testdata/selectors` as typed values.

use serde_json::Value;
use std::path::Path;
use tidekv::select::{GroupReduce, Observation, Pool, PoolOrder, Scorer, SelectionDims, Selector};

/// Every file, so that a missing one fails instead of being skipped.
pub const FILES: [&str; 11] = [
    "a_gqa4_s256",
    "a2_window8_kernel7avg",
    "b_gqa2_s333",
    "c_outliers_s192",
    "d_ties_s96",
    "e_tiny_s9",
    "e_tiny_s10",
    "e_tiny_s11",
    "e_tiny_s13",
    "f1_mha_s64",
    "f2_mqa_s64",
];

/// One file: inputs and what is expected of them.
pub struct Case {
    pub name: &'static str,
    pub dims: SelectionDims,
    /// D.
    pub head_dim: usize,
    /// W.
    pub window: usize,
    pub scale: f32,
    /// `[Hq]` of `[W, D]`.
    pub q: Vec<Vec<f32>>,
    /// `[Hkv]` of `[S, D]`.
    pub k: Vec<Vec<f32>>,
    /// `[Hq]` of `[W]`.
    pub lse: Vec<Vec<f64>>,
    /// `[Hq]` of `[W]`.
    pub row_max: Vec<Vec<f64>>,
    /// `[Hq]` of `[S - W]`.
    pub attn_mean: Vec<Vec<f64>>,
    pub expected: Vec<Expected>,
}

/// What one selector must yield.
pub struct Expected {
    pub id: String,
    /// The selector, once per way of writing it: average pooling and group mean
    /// commute, so both orders must pass.
    pub selectors: Vec<Selector>,
    /// Pooled scores `[Hkv]` of `[S - W]`, for scorers that need some.
    pub scores: Option<Vec<Vec<f64>>>,
    pub sets: Vec<KeptSet>,
}

/// Kept positions at one budget.
pub struct KeptSet {
    pub budget: usize,
    pub heads: Vec<KeptHead>,
}

/// Kept positions of one KV head.
#[derive(Default)]
pub struct KeptHead {
    pub kept: Vec<u32>,
    /// Positions that may be swapped for one another.
    pub ambiguous: Vec<u32>,
    /// Whether the scores at the cut are equal in exact arithmetic.
    pub exact_tie: bool,
}

impl Case {
    /// Hq.
    pub fn query_heads(&self) -> usize {
        self.dims.kv_heads * self.dims.group
    }

    /// S - W.
    pub fn prefix(&self) -> usize {
        self.dims.n_tokens - self.window
    }

    /// Largest sum of |q_d k_d| * scale over all rows and keys: the scale of
    /// rounding errors in a logit.
    pub fn logit_magnitude(&self) -> f64 {
        let mut largest = 0.0_f64;
        for (head, queries) in self.q.iter().enumerate() {
            let keys = &self.k[head / self.dims.group];
            for query in queries.chunks_exact(self.head_dim) {
                for key in keys.chunks_exact(self.head_dim) {
                    let products = query.iter().zip(key).map(|(&q, &k)| f64::from(q * k).abs());
                    largest = largest.max(products.sum::<f64>() * f64::from(self.scale));
                }
            }
        }
        largest
    }
}

/// All cases.
pub fn cases() -> Vec<Case> {
    FILES.into_iter().map(case).collect()
}

fn read(name: &str) -> Value {
    let file = format!("testdata/selectors/{name}.json");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
    serde_json::from_str(&text).unwrap()
}

fn case(name: &'static str) -> Case {
    let json = read(name);
    assert_eq!(json["schema"], "tidekv-selector-fixture/1", "{name}");
    let inputs = &json["inputs"];
    let size = |key: &str| count(&json["dims"][key]);
    // A case with the tensors of another one observes its last W queries.
    let other = inputs.get("same_as").map(|other| read(other.as_str().unwrap()));
    let tensors = other.as_ref().map_or(inputs, |other| &other["inputs"]);
    let dims = SelectionDims { n_tokens: size("s"), kv_heads: size("hkv"), group: size("groups") };
    let case = Case {
        name,
        dims,
        head_dim: size("d"),
        window: size("w"),
        scale: number(&json["scale"]) as f32,
        q: list(&tensors["q_window"], |head| {
            let rows = flat(head);
            rows[rows.len() - size("w") * size("d")..].to_vec()
        }),
        k: list(&tensors["k"], flat),
        lse: list(&json["stats"]["lse"], |row| list(row, number)),
        row_max: list(&json["stats"]["row_max"], |row| list(row, number)),
        attn_mean: list(&json["stats"]["attn_mean"], |row| list(row, number)),
        expected: json["selectors"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|selector| expected(selector, dims.kv_heads))
            .collect(),
    };
    assert_eq!(case.q.len(), case.query_heads(), "{name}");
    assert!(case.q.iter().all(|q| q.len() == case.window * case.head_dim), "{name}");
    assert!(case.k.iter().all(|k| k.len() == dims.n_tokens * case.head_dim), "{name}");
    assert!(case.attn_mean.iter().all(|row| row.len() == case.prefix()), "{name}");
    case
}

/// The selectors that exist in the library; the files hold more.
fn expected(json: &Value, kv_heads: usize) -> Option<Expected> {
    let id = json["id"].as_str().unwrap();
    let selectors = match id {
        "streaming" => {
            let sinks = count(&json["params"]["sinks"]);
            vec![Selector { sinks, ..Selector::new(Scorer::Recency) }]
        }
        "snapkv_kvpress" => [PoolOrder::GroupThenPool, PoolOrder::PoolThenGroup]
            .map(|order| observing(&json["params"], order))
            .to_vec(),
        _ if id.starts_with("snapkv_grouped_") => {
            assert_eq!(json["params"]["order"], "group-then-pool");
            vec![observing(&json["params"], PoolOrder::GroupThenPool)]
        }
        _ if id.starts_with("snapkv_pool_then_mean_") => {
            assert_eq!(json["params"]["order"], "pool-then-group");
            vec![observing(&json["params"], PoolOrder::PoolThenGroup)]
        }
        _ => return None,
    };
    Some(Expected {
        id: id.to_owned(),
        selectors,
        scores: json.get("scores").map(|rows| list(rows, |row| list(row, number))),
        sets: list(&json["sets"], |set| kept_set(set, kv_heads)),
    })
}

fn observing(params: &Value, order: PoolOrder) -> Selector {
    let pool = match params["pool"].as_str().unwrap() {
        "avg" => Pool::Avg,
        "max" => Pool::Max,
        other => panic!("pool {other}"),
    };
    let group = match params["group"].as_str().unwrap() {
        "mean" => GroupReduce::Mean,
        "max" => GroupReduce::Max,
        other => panic!("group {other}"),
    };
    let (window, kernel) = (count(&params["window"]), count(&params["kernel"]));
    Selector::new(Scorer::Observation(Observation { window, kernel, pool, group, order }))
}

fn kept_set(json: &Value, kv_heads: usize) -> KeptSet {
    let of_head = |key: &str, head: usize| {
        let lists = json.get(key)?.as_array().unwrap();
        // A single list is shared by all heads.
        Some(lists[if lists.len() == 1 { 0 } else { head }].clone())
    };
    let positions = |key, head| {
        of_head(key, head).map_or(Vec::new(), |positions| list(&positions, |p| count(p) as u32))
    };
    let head = |head| KeptHead {
        kept: positions("kept", head),
        ambiguous: positions("ambiguous", head),
        exact_tie: of_head("tie_kind", head).is_some_and(|kind| kind == "exact"),
    };
    KeptSet { budget: count(&json["budget"]), heads: (0..kv_heads).map(head).collect() }
}

fn list<T>(json: &Value, item: impl Fn(&Value) -> T) -> Vec<T> {
    json.as_array().unwrap_or_else(|| panic!("not a list: {json}")).iter().map(item).collect()
}

fn flat(json: &Value) -> Vec<f32> {
    list(json, |row| list(row, |x| number(x) as f32)).concat()
}

fn number(json: &Value) -> f64 {
    json.as_f64().unwrap_or_else(|| panic!("not a number: {json}"))
}

fn count(json: &Value) -> usize {
    json.as_u64().unwrap_or_else(|| panic!("not a count: {json}")) as usize
}
