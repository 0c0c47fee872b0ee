"""Perplexity, copy perplexity and bytes of a model whose cache is what kvforge's kernels reconstruct.

Usage: python3 bench/quality/run.py --model FOLDER [--out quality] [--schemes fp16,shard,...] [--text FILE@OFFSET]...

FOLDER holds a Hugging Face model: config.json, safetensors, tokenizer.json. Needs torch and transformers (a CPU is
enough), and a built kvforge (`npm ci`). Results are kept in the output folder, one a text and scheme: an interrupted run
goes on when the same command is given again. docs/quality.md says what is measured.
"""

import argparse
import hashlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time

from kept import Kept, scheme_name, summarize, table, write_whole
from plot import plot
from texts import USUAL, parse_text, read_source, stretch

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def presets():
    """Names of kvforge's own schemes, as the built package has them."""
    names = os.path.join(ROOT, "dist", "dsl", "schemes", "presets.js")
    script = "const { schemeNames } = await import(process.argv[1]); console.log(schemeNames.join());"
    asked = subprocess.run(["node", "--input-type=module", "-e", script, names], stdout=subprocess.PIPE, text=True)
    if asked.returncode != 0:
        raise ValueError(f"{names} does not load: build kvforge (npm ci), or name --schemes")
    return asked.stdout.strip().split(",")


class NotMeasured(Exception):
    """A scheme that does not fit the model, or a device that fails: it ends no measurement of other schemes."""


def arguments(args):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True, help="a folder with config.json, safetensors and tokenizer.json")
    parser.add_argument("--out", default="quality", help="where results are kept, and the table and the plot go")
    parser.add_argument("--schemes", help="fp16, presets and files, commas between them; fp16 and all presets if left out")
    parser.add_argument("--text", action="append", help=f"FILE@OFFSET in tokens; may be repeated; default {USUAL}")
    parser.add_argument("--prefix", type=int, default=3072, help="tokens that are compressed")
    parser.add_argument("--tokens", type=int, default=1024, help="tokens that are read after them")
    parser.add_argument("--copy-from", type=int, default=1000, help="first token of the prefix that is read again")
    parser.add_argument("--copy-tokens", type=int, default=512, help="how many are")
    parser.add_argument("--device", default="emulator", help="emulator, webgpu or cuda")
    usual = shlex.join(["node", os.path.join(ROOT, "dist", "cli", "main.js")])
    parser.add_argument("--kvforge", default=usual, help="the command, arguments in front of `reconstruct` included")
    parser.add_argument("--calibration", help="a file of kvforge calibrate, for schemes whose names begin with tilt")
    return parser.parse_args(args)


def settings_of(options):
    """What results of one folder have in common."""
    with open(os.path.join(options.model, "config.json"), "rb") as file:
        config = hashlib.sha256(file.read()).hexdigest()
    weights = sum(
        os.path.getsize(os.path.join(options.model, name))
        for name in os.listdir(options.model)
        if name.endswith(".safetensors")
    )
    names = ("prefix", "tokens", "copy_from", "copy_tokens", "device")
    settings = {"config": config, "weightBytes": weights, **{name: getattr(options, name) for name in names}}
    # Results kept before there were calibrations stay comparable: no key where there is none.
    if options.calibration:
        with open(options.calibration, "rb") as file:
            settings["calibration"] = hashlib.sha256(file.read()).hexdigest()
    return settings


def reconstruct(options, scheme, prefix, output):
    """Bytes of the compressed prefix, all layers; what is read back from it goes to `output`."""
    command = [*shlex.split(options.kvforge), "reconstruct", scheme, "--json", "--device", options.device]
    files = ["--model", os.path.join(options.model, "config.json"), "--input", prefix, "--output", output]
    if options.calibration and scheme.startswith("tilt"):
        files += ["--calibration", options.calibration]
    ended = subprocess.run([*command, *files], stdout=subprocess.PIPE)
    try:
        document = json.loads(ended.stdout)
    except ValueError:
        document = {}
    if ended.returncode != 0 or "bytes" not in document:
        error = document.get("error", {})
        raise NotMeasured(error.get("message", f"kvforge ended with exit code {ended.returncode}"))
    return {"bytes": document["bytes"], "fp16Bytes": document["fp16Bytes"]}


def measure(options, model, tokens, scheme, prefix, folder):
    started = time.monotonic()
    if scheme == "fp16":
        cached = prefix
        exact = model.layers * options.prefix * model.width * 4
        sizes = {"bytes": exact, "fp16Bytes": exact}
    else:
        cached = os.path.join(folder, "reconstructed.safetensors")
        sizes = reconstruct(options, scheme, prefix, cached)
    coded = time.monotonic()
    again = tokens[options.copy_from : options.copy_from + options.copy_tokens]
    losses = {"loss": model.loss(cached, tokens[options.prefix :]), "copyLoss": model.loss(cached, again)}
    seconds = {"reconstructSeconds": coded - started, "predictSeconds": time.monotonic() - coded}
    return {**sizes, **losses, **{name: round(value, 1) for name, value in seconds.items()}}


def report(options, schemes, texts, kept):
    rows = summarize(schemes, texts, kept)
    if not rows:
        return ""
    text = table(rows, len(texts))
    whole = [row for row in rows if row["texts"] == len(texts)]
    for name, contents in (("md", text), ("json", json.dumps(rows, indent=2) + "\n"), ("svg", plot(whole))):
        if contents is not None:
            write_whole(os.path.join(options.out, f"quality.{name}"), contents)
    return text


def main(args):
    options = arguments(args)
    schemes = list(dict.fromkeys(options.schemes.split(","))) if options.schemes else ["fp16", *presets()]
    texts = [parse_text(named) for named in options.text or USUAL]
    names = [text.name for text in texts]
    kept = Kept(options.out, settings_of(options))
    missing = {text: [scheme for scheme in schemes if kept.read(text.name, scheme) is None] for text in texts}
    failed = False
    if any(missing.values()):
        # Takes seconds, and a run that only reports needs none of it.
        from language_model import LanguageModel

        model = LanguageModel(options.model)
        sources = {source: model.encode(read_source(source)) for source in {text.source for text in texts}}
        length = options.prefix + options.tokens
        stretches = {text: stretch(sources[text.source], text, length) for text in texts}
    for text in (text for text in texts if missing[text]):
        with tempfile.TemporaryDirectory(prefix="kvforge-quality-") as folder:
            prefix = os.path.join(folder, "prefix.safetensors")
            model.write_prefix(stretches[text][: options.prefix], prefix)
            for scheme in missing[text]:
                try:
                    result = measure(options, model, stretches[text], scheme, prefix, folder)
                except NotMeasured as error:
                    failed = True
                    print(f"{text.name}, {scheme_name(scheme)}: {error}", file=sys.stderr)
                    continue
                kept.write(text.name, scheme, result)
                report(options, schemes, names, kept)
                print(f"{text.name}, {scheme_name(scheme)}: {json.dumps(result)}", file=sys.stderr)
    print(report(options, schemes, names, kept), end="")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
