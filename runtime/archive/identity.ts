import { frequenciesFor, layerShape, type ModelShape } from '../../dsl/model.js';
import type { Rotation } from '../reference/rope.js';
import { type ArchiveHeader, longestName, refused } from './format.js';

/** What the coded numbers depend on of a model, as a header has it. */
export function identityOf(
  model: ModelShape,
  layers: readonly number[],
  tokens: number,
): Pick<ArchiveHeader, 'model' | 'layers' | 'ropes'> {
  const ropes: ArchiveHeader['ropes'] = [];
  const places = new Map<string, number>();
  const placed = layers.map((layer) => {
    const { rope } = layerShape(model, layer);
    const own = { pairing: rope.pairing, frequencies: [...frequenciesFor(rope, tokens)] };
    const key = JSON.stringify(own);
    const place = places.get(key) ?? ropes.push(own) - 1;
    places.set(key, place);
    return { layer, rope: place };
  });
  const { layers: count, kvHeads, headDim } = model;
  const name = model.name.replace(/\p{Cc}/gu, ' ').slice(0, longestName);
  return { model: { name, layers: count, kvHeads, headDim }, layers: placed, ropes };
}

/** How the keys of a layer were turned. */
export function rotationOf({ layers, ropes }: ArchiveHeader, place: number): Rotation {
  const { pairing, frequencies } = ropes[layers[place]!.rope]!;
  return { invFreq: frequencies, pairing };
}

/** Engines differ in the last digits of a power. */
const relativeDifference = 1e-9;

/** @throws KvforgeError `invalid-input` for the first thing in which another model differs; names are for people */
export function checkModel(header: ArchiveHeader, model: ModelShape): void {
  const hint = `It holds a cache of ${header.model.name}: give that model.`;
  for (const field of ['layers', 'kvHeads', 'headDim'] as const) {
    const [own, other] = [header.model[field], model[field]];
    if (own !== other) throw refused(`model, ${field}`, `${other} (of ${model.name})`, String(own), hint);
  }
  const numbers = header.layers.map(({ layer }) => layer);
  const other = identityOf(model, numbers, header.tokens);
  for (const [place, { layer, rope }] of header.layers.entries()) {
    const [mine, theirs] = [header.ropes[rope]!, other.ropes[other.layers[place]!.rope]!];
    const at = `model, RoPE of layer ${layer}`;
    if (mine.pairing !== theirs.pairing) throw refused(at, `${theirs.pairing} (of ${model.name})`, mine.pairing, hint);
    const [count, wanted] = [mine.frequencies.length, theirs.frequencies.length];
    if (count !== wanted) throw refused(at, `${wanted} frequencies (of ${model.name})`, String(count), hint);
    for (const [pair, frequency] of theirs.frequencies.entries()) {
      const own = mine.frequencies[pair]!;
      if (Math.abs(own - frequency) <= relativeDifference * Math.abs(frequency)) continue;
      throw refused(`${at}, frequency ${pair}`, `${frequency} (of ${model.name})`, String(own), hint);
    }
  }
}
