import { int4, mix, shard } from '../../dsl/index.js';

// Checked by `npm run typecheck`, never run: each call must be an error in the editor.
export function refusedByTheTypeChecker(): void {
  // @ts-expect-error keys of a low-rank scheme with values of another
  mix({ name: 'x', keys: shard, values: int4 });
  // @ts-expect-error values of a low-rank scheme with keys of another
  mix({ name: 'x', keys: int4, values: shard });
  // @ts-expect-error a mix without a name
  mix({ keys: int4, values: int4 });
}
