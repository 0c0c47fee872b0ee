import type { ScalarCodec } from './codec.js';

/** Levels by codec and number of channels: computing 256 of them takes longer than all the kernels. */
const knownLevels = new WeakMap<object, Map<number, readonly number[]>>();

/** What a codec's tables hold for so many channels, as kernels read it: float32. */
export function levelsOf(codec: ScalarCodec, channels: number): readonly number[] {
  const known = knownLevels.get(codec) ?? new Map<number, readonly number[]>();
  knownLevels.set(codec, known);
  const levels = known.get(channels) ?? Array.from(codec.levels(channels), Math.fround);
  known.set(channels, levels);
  return levels;
}
