//! A long plain document: small events of a made-up coast, and one fact hidden
//! among them.

use crate::random::Random;

/// Asked after the document.
pub const QUESTION: &str = "What is the access code of the archive room?";
/// Opening words of the answer, and of the sentence that is looked for.
pub const ANSWER_PREFIX: &str = "The access code of the archive room is";

/// What a document is made from; the same on every machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recipe {
    /// Seed of the words and of the code.
    pub seed: u64,
    /// Sentences, the hidden one not counted.
    pub sentences: usize,
    /// Sentences in front of the hidden one, in percent of all.
    pub depth: usize,
}

/// A document and what is to be found in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    sentences: Vec<String>,
    /// Index of the sentence that is looked for.
    fact: usize,
    /// The hidden code: four different digits.
    pub code: String,
}

impl Document {
    /// Writes the document.
    pub fn new(recipe: Recipe) -> Self {
        let mut random = Random(recipe.seed);
        let code = code(&mut random);
        let fact = recipe.sentences * recipe.depth.min(100) / 100;
        let mut sentences = write(&mut random, recipe.sentences);
        sentences.insert(fact, format!("{ANSWER_PREFIX} {code}."));
        Document { sentences, fact, code }
    }

    /// The whole text.
    pub fn text(&self) -> String {
        paragraphs(&self.sentences)
    }

    /// The hidden sentence between its neighbours.
    pub fn excerpt(&self) -> String {
        let last = (self.fact + 1).min(self.sentences.len() - 1);
        self.sentences[self.fact.saturating_sub(1)..=last].join(" ")
    }
}

/// Four different digits: short enough to be kept whole by a max pool of 7 around
/// its first digit, and without the repetitions that small models stumble over.
fn code(random: &mut Random) -> String {
    loop {
        let code = (1000 + random.below(9000)).to_string();
        let repeats = |(at, digit): (usize, char)| code[..at].contains(digit);
        if !code.char_indices().any(repeats) {
            return code;
        }
    }
}

/// `n` sentences with nothing hidden in them.
pub fn prose(seed: u64, n: usize) -> String {
    paragraphs(&write(&mut Random(seed), n))
}

fn write(random: &mut Random, n: usize) -> Vec<String> {
    (0..n).map(|_| sentence(random)).collect()
}

fn paragraphs(sentences: &[String]) -> String {
    const SENTENCES: usize = 8;
    let paragraphs: Vec<String> = sentences.chunks(SENTENCES).map(|some| some.join(" ")).collect();
    paragraphs.join("\n")
}

/// One of the phrases of a comma-separated list.
fn pick(random: &mut Random, list: &'static str) -> &'static str {
    let phrases = || list.split(',').map(str::trim);
    let chosen = random.below(phrases().count());
    phrases().nth(chosen).unwrap_or_default()
}

const NAME: &str = "Marta, Ines, Henrik, Tomas, Agnes, Piotr, Lucia, Oskar, Wanda, Emil, Greta, \
    Samuel, Nora, Felix, Clara, Anton, Judith, Leo, Rosa, Victor";
const TRADE: &str = "baker, carpenter, ferryman, schoolteacher, postman, gardener, innkeeper, \
    sailmaker, doctor, miller, clockmaker, shepherd, printer, fisherman, weaver, beekeeper";
const TOWN: &str = "Alderby, Norwick, Saltmere, Fennbridge, Oxley, Harrow Point, Quarrytown, \
    Lindholm, Westmarsh, Upper Dale, Brantford, Kettle Bay";
const PLACE: &str = "the harbour, the old mill, the church square, the north gate, the orchard, \
    the schoolhouse, the stone bridge, the market hall, the lighthouse, the river meadow, \
    the quarry, the railway station, the inn, the boathouse, the hill above the town, \
    the town hall";
const GOODS: &str = "baskets of pears, loaves of bread, jars of honey, bundles of hay, \
    woollen blankets, clay pots, crates of herring, pairs of boots, sacks of flour, \
    bags of onions, candles, wooden spoons, barrels of cider, books, lanterns, rolls of cloth";
const ANIMALS: &str = "goats, hens, geese, sheep, cats, ponies, rabbits, ducks";
const DAY: &str = "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday";
const MONTH: &str = "January, February, March, April, May, June, July, August, September, \
    October, November, December";
const SKY: &str = "cold, mild, grey, windy, clear, foggy, wet, bright, stormy, still";
const WIND: &str = "north, east, south, west";
const TOPIC: &str = "the price of salt, the broken pump, the new road, the summer fair, \
    the leaking roof, the winter wood, the school choir, the ferry timetable, \
    the flood of last spring, the village well";
const DEED: &str = "mended the fence behind, painted the door of, waited for an hour at, \
    lost a glove near, swept the steps of, planted beans beside, told a long story at, \
    drew a map of, slept through the afternoon at, found a silver button near";
const ENDING: &str = "while the wind turned, and the tea went cold, \
    because the road was closed, although it was getting dark, \
    and a dog followed all the way, until the ferry came back, and nobody was in a hurry, \
    as agreed the week before";
const NUMBER: &str = "two, three, four, five, six, seven, eight, nine, ten, eleven, twelve, \
    fifteen, twenty, thirty, forty";

/// Kinds of sentences; words in braces stand for one of a list.
const PATTERNS: [&str; 10] = [
    "On {day} {name} the {trade} sold {number} {goods} at {place}.",
    "The weather in {town} was {sky} and {sky}, with wind from the {wind}.",
    "{name} has lived in {town} for {number} years and keeps {number} {animals}.",
    "In {month} the people of {town} met at {place} to talk about {topic}.",
    "{name} {deed} {place} {ending}.",
    "A letter from {town} reached {name} the {trade} after {number} days.",
    "It takes {number} minutes to walk from {place} to {place}.",
    "The {trade} of {town} bought {number} {goods} from {name}.",
    "Every {day} the {trade} and the {trade} have breakfast at {place}.",
    "During the {sky} nights of {month}, {name} counted the boats from {place}.",
];

fn phrases(of: &str) -> &'static str {
    match of {
        "name" => NAME,
        "trade" => TRADE,
        "town" => TOWN,
        "place" => PLACE,
        "goods" => GOODS,
        "animals" => ANIMALS,
        "day" => DAY,
        "month" => MONTH,
        "sky" => SKY,
        "wind" => WIND,
        "topic" => TOPIC,
        "deed" => DEED,
        "ending" => ENDING,
        "number" => NUMBER,
        _ => "",
    }
}

fn sentence(random: &mut Random) -> String {
    let pattern = PATTERNS[random.below(PATTERNS.len())];
    let mut text = String::new();
    // Text and names of lists take turns.
    for (index, part) in pattern.split(['{', '}']).enumerate() {
        let is_list = index % 2 == 1;
        text.push_str(if is_list { pick(random, phrases(part)) } else { part });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECIPE: Recipe = Recipe { seed: 1, sentences: 100, depth: 40 };

    #[test]
    fn the_fact_is_there_once_where_it_should_be() {
        let document = Document::new(RECIPE);
        let (text, code) = (document.text(), &document.code);
        let fact = format!("{ANSWER_PREFIX} {code}.");
        let counts = [text.matches(&fact).count(), text.matches(code.as_str()).count()];
        assert_eq!((code.len(), counts), (4, [1, 1]));
        let before = text.split(&fact).next().unwrap();
        assert_eq!(before.matches('.').count(), 40);
        assert_eq!(text.matches('.').count(), 101);
        assert!(document.excerpt().contains(&fact));
        assert_eq!(document.excerpt().matches('.').count(), 3);
    }

    #[test]
    fn codes_have_four_different_digits() {
        for seed in 0..200 {
            let code = code(&mut Random(seed));
            let digits: std::collections::BTreeSet<char> = code.chars().collect();
            assert!(code.len() == 4 && digits.len() == 4 && code.parse::<u32>().is_ok(), "{code}");
        }
    }

    #[test]
    fn the_fact_may_be_first_or_last() {
        for (depth, sentences) in [(0, 5), (100, 5), (50, 0), (50, 1)] {
            let document = Document::new(Recipe { seed: 1, sentences, depth });
            assert_eq!(document.text().matches(&document.code).count(), 1);
            assert!(document.excerpt().contains(&document.code), "{depth} {sentences}");
        }
    }

    #[test]
    fn a_recipe_always_makes_the_same_document() {
        assert_eq!(Document::new(RECIPE), Document::new(RECIPE));
        assert_ne!(Document::new(RECIPE).code, Document::new(Recipe { seed: 2, ..RECIPE }).code);
        let start = "A letter from Lindholm reached Greta the shepherd after eight days. Every";
        assert!(prose(1, 40).starts_with(start), "{}", prose(1, 3));
    }

    #[test]
    fn every_blank_is_filled() {
        let text = prose(3, 2000);
        assert!(!text.contains(['{', '}']) && !text.contains("  "));
        for pattern in PATTERNS {
            let blanks = pattern.split(['{', '}']).skip(1).step_by(2);
            assert!(blanks.into_iter().all(|blank| !phrases(blank).is_empty()), "{pattern}");
        }
    }
}
