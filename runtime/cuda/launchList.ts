/** One launch, checked, as the addon takes it. */
export interface PackedLaunch {
  readonly kernel: number;
  readonly grid: readonly [number, number, number];
  readonly addresses: readonly number[];
}

/** Launches one after another: kernel, blocks in x, y and z, number of pointers, the pointers. */
export function packLaunches(launches: readonly PackedLaunch[]): Float64Array {
  const list = new Float64Array(launches.reduce((sum, { addresses }) => sum + 5 + addresses.length, 0));
  let at = 0;
  for (const { kernel, grid, addresses } of launches) {
    list.set([kernel, ...grid, addresses.length, ...addresses], at);
    at += 5 + addresses.length;
  }
  return list;
}
