"""The plot of a run, as SVG: how far perplexity and copy perplexity are above fp16's, against the bits of a number."""

import math
from html import escape

WIDTH, HEIGHT, LEFT, TOP, PANEL, GAP = 960, 480, 70, 40, 380, 90
LINE, LETTER = 14, 6.6
# Per cent; less than this above fp16, or below it, is noise, and drawn at the lower edge.
LEAST = 0.1


def per_cent_above(value, exact):
    return max(LEAST, (value / exact - 1) * 100)


def label_heights(labels):
    """Moves labels up until none covers another, the lowest first: each an x, a y and a width, where it would best be."""
    placed = {}
    for index in sorted(range(len(labels)), key=lambda each: -labels[each][1]):
        x, y, width = labels[index]
        rivals = [
            height
            for other, height in placed.items()
            if x < labels[other][0] + labels[other][2] and labels[other][0] < x + width
        ]
        while any(abs(y - height) < LINE for height in rivals):
            y = min(height for height in rivals if abs(y - height) < LINE) - LINE
        placed[index] = y
    return [placed[index] for index in range(len(labels))]


def panel(rows, field, title, left):
    """One plot. Both axes are logarithmic: halving the bits is the same step everywhere."""
    exact = next(row[field] for row in rows if row["scheme"] == "fp16")
    coded = [row for row in rows if row["scheme"] != "fp16"]
    heights = [per_cent_above(row[field], exact) for row in coded]
    bits = [row["bits"] for row in coded]
    # Room for a label beside the outermost, and above the highest.
    narrow, wide = math.log2(min(bits, default=1)) - 0.2, math.log2(max(bits, default=16)) + 0.2
    high = math.log10(max(heights, default=LEAST) * 2)
    bottom, low = TOP + PANEL, math.log10(LEAST)
    across = lambda value: left + (math.log2(value) - narrow) / (wide - narrow) * PANEL
    up = lambda value: bottom - (math.log10(value) - low) / (high - low) * PANEL
    parts = [
        f'<text x="{left}" y="{TOP - 16}" font-weight="bold">{escape(title)} above {exact:.3f} of fp16</text>',
        f'<path d="M{left} {TOP}V{bottom}H{left + PANEL}" fill="none" stroke="#888"/>',
        f'<text x="{left + PANEL / 2}" y="{bottom + 38}" text-anchor="middle">bits a number, as allocated</text>',
    ]
    for value in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000):
        if math.log10(value) <= high:
            name = f"≤ {value:g} %" if value == LEAST else f"{value:g} %"
            parts.append(f'<path d="M{left} {up(value):.1f}h{PANEL}" stroke="#ddd"/>')
            parts.append(f'<text x="{left - 6}" y="{up(value) + 4:.1f}" text-anchor="end">{name}</text>')
    for value in (1, 1.5, 2, 3, 4, 6, 8, 12):
        if narrow <= math.log2(value) <= wide:
            parts.append(f'<text x="{across(value):.1f}" y="{bottom + 18}" text-anchor="middle">{value:g}</text>')
    labels = []
    for row, height in zip(coded, heights):
        x, width = across(row["bits"]), len(row["scheme"]) * LETTER
        start = x + 8 if x + 8 + width < left + PANEL else x - 8 - width
        labels.append((start, up(height), width))
    for row, height, (start, _, width), y in zip(coded, heights, labels, label_heights(labels)):
        x = across(row["bits"])
        parts.append(f'<circle cx="{x:.1f}" cy="{up(height):.1f}" r="4" fill="#1f6feb"/>')
        if abs(y - up(height)) > LINE / 3:
            near = start if start > x else start + width
            parts.append(f'<path d="M{x:.1f} {up(height):.1f}L{near:.1f} {y:.1f}" stroke="#1f6feb"/>')
        parts.append(f'<text x="{start:.1f}" y="{y + 4:.1f}">{escape(row["scheme"])}</text>')
    return parts


def plot(rows):
    """An SVG document that fetches nothing; None without fp16, or without anything to put beside it."""
    names = [row["scheme"] for row in rows]
    if "fp16" not in names or len(names) < 2:
        return None
    parts = [
        *panel(rows, "perplexity", "perplexity", LEFT),
        *panel(rows, "copyPerplexity", "copy perplexity", LEFT + PANEL + GAP),
    ]
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12"'
    start = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>'
    title = "<title>Perplexity and copy perplexity of every scheme against its bits a number</title>"
    return "\n".join([start, title, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>"]) + "\n"
