import type { BenchDocument, BenchRow } from '../bench/schema.js';
import type { Device } from '../device.js';
import { namesSoftware } from '../webgpu/adapter.js';
import type { ComparedTime } from './schema.js';

/** Why the times of a device say nothing of a GPU; null where they do. */
export function reasonAgainstTimes({
  kind,
  clock,
  description,
  identity,
}: Pick<Device, 'clock' | 'description' | 'identity' | 'kind'>): string | null {
  if (kind === 'emulator' || namesSoftware(`${identity.name} ${description}`)) {
    return `${identity.name} runs kernels on a CPU, and its times say nothing of a GPU`;
  }
  return clock === 'host' ? `${identity.name} has no clock of its own` : null;
}

/** What a bench says of one scheme. */
export function timesOf({ rows }: Pick<BenchDocument, 'rows'>, scheme: string): readonly ComparedTime[] {
  return rows.filter((row) => row.scheme === scheme).map(timeOf);
}

/** Why a bench has no time of a scheme at some shape. */
export function untimedNotes({ skipped }: Pick<BenchDocument, 'skipped'>, scheme: string): readonly string[] {
  return skipped
    .filter((each) => each.scheme === scheme)
    .map(({ stage, shape, reason }) => `${stage}, ${shape}: not measured: ${reason}`);
}

function timeOf({ stage, shape, us, spread, maxError, errorBar, correct }: BenchRow): ComparedTime {
  return { stage, shape, us, spread, maxError, errorBar, correct };
}
