import { channelMax, defineScheme, hadamard, lloydMax, pca, shard, unrope, vq } from '../../dsl/index.js';

// Checked by `npm run typecheck`, never run: each line must be an error in the editor.
export function refusedByTheTypeChecker(): void {
  // @ts-expect-error a rank that is no multiple of 16
  pca({ rank: 100, bits: 4, group: 64 });
  // @ts-expect-error a width that no field has
  pca({ rank: 64, bits: 5, group: 64 });
  // @ts-expect-error a group that divides no tile
  pca({ rank: 64, bits: 4, group: 48 });
  // @ts-expect-error a u8 index cannot name 512 entries
  vq({ channels: 4, entries: 512 });
  // @ts-expect-error three channels fill no word
  vq({ channels: 3, entries: 256 });
  // @ts-expect-error a stream width that no packing has
  lloydMax({ bits: 5 });
  // @ts-expect-error a chain in the wrong order
  defineScheme({ ...shard, keys: [pca({ rank: 64, bits: 4, group: 64 }), unrope()] });
  // @ts-expect-error a chain without its last step
  defineScheme({ ...shard, values: [hadamard(), channelMax()] });
  // @ts-expect-error a missing field
  defineScheme({ name: 'x', keys: shard.keys, values: shard.values, sinks: 4, window: 64 });
}
