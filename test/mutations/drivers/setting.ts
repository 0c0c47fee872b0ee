import type { PartName, SequenceLayout } from '../../../codegen/plan/layout.js';
import type { Geometry } from '../../../dsl/geometry.js';
import { strayWrites, untouched } from '../../../runtime/verify/draws.js';
import type { Judge } from '../../../runtime/verify/judge.js';
import { lowRankOf } from '../../lowRank.js';
import { partBytes, promptSetting } from '../../stages/harness.js';

/** Record and layout of a prompt with `middle` compressed tokens, and a cache that holds nothing yet. */
export function middleSetting(g: Geometry, middle: number) {
  const setting = promptSetting(lowRankOf(g), g.scheme.sinks + middle + g.scheme.window);
  return { ...setting, cache: new Uint8Array(setting.layout.bytes).fill(untouched) };
}

/** Bytes of the parts that a kernel fills; that it wrote nothing else is judged here. */
export function writtenParts(
  layout: SequenceLayout,
  cache: Uint8Array,
  names: readonly PartName[],
  judge: Judge,
): readonly Uint8Array[] {
  const parts = layout.parts.filter(({ name }) => (names as readonly string[]).includes(name));
  judge.check(`writes outside of ${names.join(', ')}`, strayWrites(cache, parts).length, 0);
  return names.map((name) => partBytes(layout, cache, name));
}
