import { KvforgeError } from '../dsl/errors.js';
import type { Geometry } from '../dsl/geometry.js';
import { attendShape } from './attendShape.js';
import type { BufferRange, Device, DeviceBuffer, Launch } from './device.js';
import type { LoadedKernels } from './kernels.js';
import { tunedSplits } from './tune/nearest.js';
import { planRows, planWork, type WorkPlan } from './work.js';

/** Buffers of a cache that attention reads. */
export interface AttendInput {
  /** Records of all sequences. */
  readonly sequences: BufferRange;
  readonly cache: BufferRange;
  readonly tables: BufferRange;
  /** f16 bits [sequences][queries][heads][head dim], after RoPE: to be copied to the device, or where they are on it. */
  readonly query: Uint16Array | BufferRange;
  /** Tokens that a query sees, at most. */
  readonly seen: number;
}

export interface AttendRun {
  /** Launches that a device is to run together, then the next ones: a time-out is for as much as one work list holds. */
  readonly runs: readonly (readonly Launch[])[];
  /** f32 [sequences][queries][heads][head dim]; of latents [latent] */
  readonly output: DeviceBuffer;
}

/** Most work items of a launch: enough to fill any device many times over, at a bounded size of their partial results. */
const mostWorkItems = 16384;
/** Most tokens of a work list, over all its rows: a CPU takes seconds for them, well within the time-out of a run. */
const mostTokensOfRun = 2 ** 22;
/** Most work items of one attention: more of them is a mistake, or work for several calls. */
const mostItemsOfCall = 2 ** 22;

/**
 * The launches of one attention over every sequence: on CUDA one, whose last block of a row merges the splits, in WGSL
 * two; more where there are more rows than a launch takes.
 *
 * @throws KvforgeError `does-not-fit` for more work items than one attention or one launch takes
 * @param owned takes the buffers as they are allocated, so that the caller can release them whatever happens
 */
export function attendLaunches(
  kernels: LoadedKernels,
  input: AttendInput,
  plan: WorkPlan,
  owned: DeviceBuffer[],
): AttendRun {
  const { device, geometry: g } = kernels;
  const allocate = (label: string, bytes: number, data?: ArrayBufferView) => {
    const buffer = device.allocate(label, bytes);
    owned.push(buffer);
    if (data) device.write(buffer, data);
    return buffer;
  };
  const shape = attendShape(g);
  const rows = planRows(shape, plan);
  checkWorkItems(g, plan, rows * plan.splits);
  const affordable = Math.max(1, Math.floor(mostTokensOfRun / Math.max(1, input.seen)));
  const most = Math.min(affordable, rowsOfLaunch(device, g, plan.splits));
  // A launch reads the results of its own rows alone, so all launches share the room for them.
  const partials = { buffer: allocate('partials', Math.min(rows, most) * plan.splits * shape.partialWords * 4) };
  const query =
    input.query instanceof Uint16Array
      ? { buffer: allocate('query', input.query.byteLength, input.query) }
      : input.query;
  const output = allocate('output', plan.sequences * plan.queries * g.heads * shape.outputDim * 4);
  const shared = {
    sequences: input.sequences,
    cache: input.cache,
    query,
    tables: input.tables,
    partials,
  };
  const counters =
    device.target === 'cuda' ? { buffer: allocate('counters', rows * 4, new Uint32Array(rows)) } : undefined;
  const runs: Launch[][] = [];
  for (let first = 0; first < rows; first += most) {
    const end = Math.min(rows, first + most);
    const workItems = (end - first) * plan.splits;
    const list = planWork(shape, plan, { first, end });
    const work = { buffer: allocate('work', list.byteLength, list) };
    if (counters) {
      runs.push([kernels.launch('attend', { workItems }, { ...shared, work, output: { buffer: output }, counters })]);
    } else {
      runs.push([
        kernels.launch('attend', { workItems }, { ...shared, work }),
        kernels.launch('attend_merge', { workItems }, { work, partials, output: { buffer: output } }),
      ]);
    }
  }
  return { runs, output };
}

function checkWorkItems(g: Geometry, { sequences, queries, splits }: WorkPlan, items: number): void {
  if (items <= mostItemsOfCall) return;
  throw new KvforgeError('does-not-fit', {
    at: 'queries',
    expected: `at most ${mostItemsOfCall} work items`,
    received: `${items} (${sequences} sequences x ${queries} queries x ${attendShape(g).kvHeads} ${g.family === 'latent' ? 'blocks of heads' : 'KV heads'} x ${splits} splits)`,
    hint: 'Attend with fewer queries a call, or leave splits out.',
  });
}

/** The splits that were tuned for shapes like this one with the kernels that are loaded, else those that lengths and device ask for. */
export function chosenSplits(kernels: LoadedKernels, rows: number, seen: number): number {
  const { geometry, splits } = kernels;
  const tuned = tunedSplits(splits, { sequences: rows, tokens: Math.max(1, seen) });
  return tuned ?? defaultSplits(geometry, rows, seen, blocksAtOnce(kernels));
}

/**
 * As many splits as the tokens that a query sees at most keep busy, as a launch has room for, and as the device runs at
 * once: a block more would wait for the others, and each has a share of the merge.
 *
 * @param blocks that the device runs at once, if that is known
 */
export function defaultSplits(g: Geometry, rows: number, seen: number, blocks = Number.POSITIVE_INFINITY): number {
  // 256 tokens keep a block's fixed cost, loading the basis, below the cost of its tokens.
  const useful = Math.min(64, Math.ceil(seen / 256));
  return Math.max(1, Math.min(useful, Math.floor(Math.min(mostWorkItems, blocks) / (rows * attendShape(g).kvHeads))));
}

/** Threads whose registers, 128 each, a multiprocessor has: attention needs that many or more. */
const threadsOfMultiprocessor = 512;

function blocksAtOnce(kernels: LoadedKernels): number | undefined {
  const { limits, identity } = kernels.device;
  if (identity.multiprocessors === undefined) return undefined;
  const { sharedBytes, threads } = kernels.launch('attend', { workItems: 0 }, {}).kernel.descriptor;
  const byShared = Math.floor(limits.sharedBytes / Math.max(1, sharedBytes.fixed + sharedBytes.dynamic));
  // Of small blocks two are counted on, not more.
  const resident = Math.max(1, Math.min(2, byShared, Math.floor(threadsOfMultiprocessor / threads)));
  return identity.multiprocessors * resident;
}

/** Rows that one launch takes with all their splits: they are neighbours in its list, and merged within it. */
function rowsOfLaunch({ limits }: Device, g: Geometry, splits: number): number {
  const room = Math.floor(limits.bytesPerBinding / (attendShape(g).partialWords * 4));
  const most = Math.floor(Math.min(mostWorkItems, limits.blocksPerDimension, room) / splits);
  if (most >= 1) return most;
  throw new KvforgeError('does-not-fit', {
    at: 'splits',
    expected: `at most ${Math.min(limits.blocksPerDimension, room)} (what one launch of this device takes)`,
    received: String(splits),
    hint: 'Leave it out for the default.',
  });
}
