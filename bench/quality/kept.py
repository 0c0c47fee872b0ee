"""Results on the disk, one file a text and scheme, so that an interrupted run goes on where it was."""

import hashlib
import json
import math
import os
import re


def write_whole(path, text):
    """A reader, or the next run, never meets half of a file."""
    own = f"{path}.tmp"
    with open(own, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(own, path)


def scheme_name(scheme):
    """A preset is its own name; `folder/file.ts#name` is called `file#name`."""
    return re.sub(r"\.[cm]?[jt]s(?=#|$)", "", os.path.basename(scheme))


def scheme_text(scheme):
    """The hash of a scheme's file, whose result is measured again once it changes; None for a preset."""
    path = scheme.split("#")[0]
    if not re.search(r"\.[cm]?[jt]s$", path):
        return None
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


class Kept:
    """The results of a folder, all measured with the same settings."""

    def __init__(self, folder, settings):
        self.folder = folder
        os.makedirs(os.path.join(folder, "results"), exist_ok=True)
        path = os.path.join(folder, "settings.json")
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                before = json.load(file)
            # Of both: a calibration is a setting that one of them may lack.
            for name in {**settings, **before}:
                if before.get(name) != settings.get(name):
                    raise ValueError(
                        f"{folder}: expected results with {name} {json.dumps(settings.get(name))}, "
                        f"got {json.dumps(before.get(name))}; choose another folder with --out"
                    )
        else:
            write_whole(path, json.dumps(settings, indent=2) + "\n")

    def _path(self, text, scheme):
        plain = re.sub(r"[^A-Za-z0-9._@#-]", "_", f"{text}--{scheme_name(scheme)}")
        return os.path.join(self.folder, "results", f"{plain}.json")

    def read(self, text, scheme):
        """The result, or None if it is to be measured."""
        try:
            with open(self._path(text, scheme), encoding="utf-8") as file:
                result = json.load(file)
        except FileNotFoundError:
            return None
        return result if result["schemeText"] == scheme_text(scheme) else None

    def write(self, text, scheme, result):
        whole = {"scheme": scheme_name(scheme), "text": text, "schemeText": scheme_text(scheme), **result}
        write_whole(self._path(text, scheme), json.dumps(whole, indent=2) + "\n")


def perplexity(results, loss):
    """Of all predictions of several texts; each text has as many."""
    return math.exp(sum(result[loss] for result in results) / len(results))


def summarize(schemes, texts, kept):
    """A row for every scheme that has results, of those texts that it has them of, fewest bytes last."""
    rows = []
    for scheme in schemes:
        found = [result for text in texts if (result := kept.read(text, scheme)) is not None]
        if not found:
            continue
        total, exact = (sum(result[name] for result in found) for name in ("bytes", "fp16Bytes"))
        rows.append(
            {
                "scheme": scheme_name(scheme),
                "texts": len(found),
                "bytes": total // len(found),
                "bits": 16 * total / exact,
                "ratio": exact / total,
                "perplexity": perplexity(found, "loss"),
                "copyPerplexity": perplexity(found, "copyLoss"),
                "byText": {r["text"]: [math.exp(r["loss"]), math.exp(r["copyLoss"])] for r in found},
            }
        )
    return sorted(rows, key=lambda row: (-row["bytes"], row["scheme"]))


def table(rows, texts):
    """Markdown. A row that lacks texts says so: its perplexity is of other words than those of the rest."""
    lines = [
        "| scheme | bits a number | bytes | times smaller | perplexity | copy perplexity |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        lacks = "" if row["texts"] == texts else f" ({row['texts']} of {texts} texts)"
        lines.append(
            f"| {row['scheme']}{lacks} | {row['bits']:.2f} | {row['bytes']:,} | {row['ratio']:.2f} "
            f"| {row['perplexity']:.3f} | {row['copyPerplexity']:.3f} |"
        )
    return "\n".join(lines) + "\n"
