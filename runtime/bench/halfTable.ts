import { halfValues } from '../verify/draws.js';

let table: Float64Array | undefined;

/** What f16 bits stand for, looked up: millions of them are converted for one measurement. */
export function valuesOfHalves(bits: Uint16Array): Float64Array {
  table ??= halfValues(Uint16Array.from({ length: 65536 }, (_, word) => word));
  const values = new Float64Array(bits.length);
  for (let i = 0; i < bits.length; i++) values[i] = table[bits[i]!]!;
  return values;
}
