import { diskAssets } from '../../../codegen/assetsDisk.js';
import type { ModelShape } from '../../../dsl/model.js';
import type { Scheme } from '../../../dsl/scheme.js';
import type { Target } from '../../../dsl/stage.js';
import { stagesOf } from '../../../dsl/stages/index.js';
import { sourceHash, stageContext } from '../candidates.js';
import type { LockEntry } from './format.js';

/** Of the entries for a scheme, a model and a target, those whose kernels have other texts now than when they were timed. */
export async function changedEntries(
  entries: readonly LockEntry[],
  { scheme, model, target }: { readonly scheme: Scheme; readonly model: ModelShape; readonly target: Target },
): Promise<readonly LockEntry[]> {
  const context = await stageContext(diskAssets, scheme, model, target);
  const stages = stagesOf[context.geometry.family];
  const changed: LockEntry[] = [];
  for (const entry of entries) {
    const stage = stages.find(({ name }) => name === entry.stage)!;
    if ((await sourceHash(context, stage, entry.tunables)) !== entry.source) changed.push(entry);
  }
  return changed;
}
