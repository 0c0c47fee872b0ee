"""Stands in for the model of bench/quality where there is no torch: losses follow from what a file says."""

import os


class LanguageModel:
    layers, width = 2, 4

    def __init__(self, folder):
        assert os.path.isfile(os.path.join(folder, "config.json"))

    def encode(self, text):
        return [ord(letter) for letter in text]

    def write_prefix(self, tokens, path):
        with open(path, "w") as file:
            file.write(f"exact {len(tokens)}")

    def loss(self, cached, tokens):
        with open(cached) as file:
            scheme = file.read().split()[0]
        # The first letter, so that perplexities tell what was read: a prefix, or a part of it again.
        return {"exact": 0, "good": 0.25, "poor": 1}[scheme] + tokens[0] / 1000 + len(tokens) / 10
