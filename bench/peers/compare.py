"""Measures TideKV beside llama.cpp and PyTorch with kvpress: the same model, lengths and threads, the
engines taking turns in every round. Writes a run: README.md, raw.csv and summary.md.

    bench/peers/setup.sh DIR
    python3 bench/peers/compare.py --peers DIR --model MODEL.gguf --tokens 8192 --rounds 3 --out RUN

Only the standard library is needed here; the peers have an environment of their own.
"""

import argparse
import csv
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FIELDS = ["round", "engine", "tokens", "prefill_s", "decode_tokens_per_s", "decode_depth_0", "load"]


def output(command: list[str]) -> str:
    """Standard output of a command; its failure is ours."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def tidekv(args: argparse.Namespace, tokens: int) -> dict:
    """Prefill with the default schedule, and decoding from its compressed cache."""
    command = [args.tidekv, "bench", "prefill", args.model, "--tokens", str(tokens)]
    command += ["--threads", str(args.threads), "--budget", str(args.budget)]
    command += ["--decode", str(args.decode), "--json", "-"]
    report = json.loads(output(command))
    run = report["runs"][0]
    # There is none behind a prompt that fills the context.
    decode = next(iter(run["decode_tokens_per_s"]), None)
    return {"prefill_s": run["ttft_s"][0], "decode_tokens_per_s": decode}


def llama(args: argparse.Namespace, tokens: int) -> dict:
    """Prefill with flash attention, and decoding after as many tokens and after none."""
    bench = [f"{args.peers}/llama/bin/llama-bench", "-m", args.model, "-t", str(args.threads)]
    bench += ["-fa", "1", "-r", "1", "-o", "json"]
    rate = lambda more: json.loads(output(bench + more))[0]["avg_ts"]
    prefill = rate(["-p", str(tokens), "-n", "0", "--no-warmup"])
    decode = ["-p", "0", "-n", str(args.decode)]
    return {
        "prefill_s": tokens / prefill,
        "decode_tokens_per_s": rate(decode + ["-d", str(tokens)]) if args.depth else None,
        "decode_depth_0": rate(decode),
    }


def torch(args: argparse.Namespace, tokens: int) -> dict:
    """Prefill with kvpress' SnapKV."""
    script = str(Path(__file__).with_name("torch_prefill.py"))
    numbers = [str(number) for number in (tokens, args.threads, args.budget)]
    report = output([f"{args.peers}/venv/bin/python", script, args.model, *numbers])
    return {"prefill_s": json.loads(report.splitlines()[-1])["prefill_s"]}


ENGINES = {"tidekv": tidekv, "llama.cpp": llama, "torch+kvpress": torch}


def processor() -> str:
    """The processor's name for itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def summary(rows: list[dict]) -> str:
    """Medians, and how many times longer each peer takes."""
    text = "| tokens | engine | first token, s (median of rounds) | of TideKV's | decode tokens/s | at depth 0 |\n"
    text += "|---|---|---|---|---|---|\n"

    def median(chosen: list[dict], field: str) -> float | None:
        values = [row[field] for row in chosen if row.get(field) is not None]
        return statistics.median(values) if values else None

    def cell(value: float | None, digits: int) -> str:
        return "" if value is None else f"{value:.{digits}f}"

    for tokens in sorted({row["tokens"] for row in rows}):
        of = lambda engine: [r for r in rows if (r["tokens"], r["engine"]) == (tokens, engine)]
        ours = median(of("tidekv"), "prefill_s")
        for engine in ENGINES:
            if chosen := of(engine):
                time = median(chosen, "prefill_s")
                ratio = f"{time / ours:.2f}" if ours else ""
                decode = cell(median(chosen, "decode_tokens_per_s"), 1)
                shallow = cell(median(chosen, "decode_depth_0"), 1)
                text += f"| {tokens} | {engine} | {time:.1f} | {ratio} | {decode} | {shallow} |\n"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--peers", required=True, help="what setup.sh was given")
    parser.add_argument("--model", required=True, help="a GGUF file")
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--budget", type=int, default=1024)
    parser.add_argument("--decode", type=int, default=32)
    parser.add_argument("--no-depth", dest="depth", action="store_false",
                        help="leave out llama.cpp's decoding after the prompt, which reads it again")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--tidekv", default=str(ROOT / "target/release/tidekv"))
    parser.add_argument("--out", type=Path, required=True, help="the run's folder, made if absent")
    args = parser.parse_args()

    args.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for round_number in range(1, args.rounds + 1):
        for tokens in args.tokens:
            for engine in args.engines:
                load = os.getloadavg()[0]
                figures = ENGINES[engine](args, tokens)
                row = {"round": round_number, "engine": engine, "tokens": tokens, "load": f"{load:.2f}"}
                rows.append({**row, **figures})
                print(rows[-1], file=sys.stderr)
                # What is measured is kept, whatever happens to the next.
                with open(args.out / "raw.csv", "w", newline="") as file:
                    writer = csv.DictWriter(file, FIELDS)
                    writer.writeheader()
                    writer.writerows(rows)
    (args.out / "summary.md").write_text(summary(rows))
    commit = output(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]).strip()
    counted = lambda number, thing: f"{number} {thing}" + ("" if number == 1 else "s")
    threads, rounds = counted(args.threads, "thread"), counted(args.rounds, "round")
    (args.out / "README.md").write_text(
        f"# {Path(args.model).name}: TideKV beside its peers\n\n"
        f"{processor()}, {threads}, TideKV {commit}, budget {args.budget}, {rounds} in which "
        f"the engines take turns. `load` in raw.csv is the system's load average before a measurement: "
        f"above 0.5 something else was running.\n\n{summary(rows)}"
    )
    print(summary(rows))


if __name__ == "__main__":
    main()
