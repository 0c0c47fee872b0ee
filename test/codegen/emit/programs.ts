/** The device functions that every target must run alike, how Node runs them, and what they are given. */
import fc from 'fast-check';
import { ts } from 'ts-morph';
import type { SpecializedFunction } from '../../../codegen/ir.js';
import { lowerText } from '../../../codegen/lower/lower.js';
import { specialize } from '../../../codegen/specialize.js';
import * as device from '../../../dsl/device.js';
import { source } from '../lower/support.js';
import { generateFunctions } from './generate.js';

export type Arguments = readonly [number, number, number, number, number, number];

/** By hand: what random expressions do not reach. */
const handwritten = `
function accumulate(values: FixedArray<f32, typeof n>, n: Static<u32>, weight: f32): f32 {
  'device';
  let sum: f32 = 0;
  for (let i = n - 1; i > 0; i--) sum += values[i]! * weight;
  return sum;
}
export function handArrays(a: f32, b: f32, m: u32, n: u32, j: i32, k: i32): f32 {
  'device';
  const values = zeros('f32', 8);
  const words = zeros('u32', 4);
  for (let i = 0; i < values.length; i += 3) values[i] = a + f32(i);
  for (let row = 0; row < 4; row++) {
    for (let column = row; column < 4; column++) words[column]! |= m << row;
  }
  if (n % 2 === 0) return accumulate(values, 8, 2);
  return f32(words[3]! & 0xff) + accumulate(values, 8, 1);
}
export function handVectors(a: f32, b: f32, m: u32, n: u32, j: i32, k: i32): f32 {
  'device';
  const v = vectorAdd(vectorScale(vec4f(a, b, 1, 2), 3), vectorSubtract(vec4f(b, a, 1, 0), vec4f(1, 2, 3, 4)));
  const w = vectorMultiply(vec2f(a, b), vec2f(2, 3));
  let best: f32 = dot(v, vec4f(1, 1, 2, 2));
  if (j < k) best -= w.x;
  else if (j > k) best += w.y;
  return best;
}
export function handChoose(a: f32, b: f32, m: u32, n: u32, j: i32, k: i32): f32 {
  'device';
  const values = zeros('f32', 8);
  for (let i = 0; i < 8; i++) values[i] = a * f32(i);
  const inside = m < 8 && (n < 8 ? values[n]! : b) > 0 ? values[m]! : b - (n < 8 ? values[n]! : 1);
  return j < k ? inside : m < 8 ? values[m]! + 1 : -inside;
}
export function handBits(a: f32, b: f32, m: u32, n: u32, j: i32, k: i32): u32 {
  'device';
  let word = m;
  for (let i = 0; i < 4; i++) {
    if (((n >>> (i * 8)) & 1) === 1) word = u32(word ^ (n << i));
    word = umul(word, 0x9e3779b1);
  }
  return isFiniteBits(a) ? uadd(word, u32(m % 13)) : 0;
}
`;

const generated = generateFunctions(25);
export const names = [...generated.map(({ name }) => name), 'handArrays', 'handVectors', 'handChoose', 'handBits'];
const text = `${handwritten}\n${generated.map((one) => one.text).join('\n')}`;

const whole = fc.integer({ min: -300, max: 300 });
const word = fc.oneof(fc.nat({ max: 40 }), fc.integer({ min: 0, max: 0xffffffff }));
const signed = fc.oneof(fc.integer({ min: -40, max: 40 }), fc.integer());
export const given: fc.Arbitrary<Arguments> = fc.tuple(whole, whole, word, word, signed, signed);

export interface Programs {
  readonly functions: readonly SpecializedFunction[];
  /** In the order of `names`. */
  readonly roots: readonly SpecializedFunction[];
  /** The result bits of every function for every row, row by row. */
  inNode(rows: readonly Arguments[]): number[];
}

export async function lowerPrograms(): Promise<Programs> {
  const library = new Map((await lowerText(source(text), 'random.ts')).map((one) => [one.name, one]));
  const roots = names.map((name) => ({ name, statics: {} }));
  const functions = specialize(roots, library);
  const target = ts.ScriptTarget.ES2022;
  const plain = ts.transpileModule(text.replaceAll('export ', ''), { compilerOptions: { target } });
  const body = `const { ${Object.keys(device).join(', ')} } = device;\n${plain.outputText}\nreturn [${names.join(', ')}];`;
  const run = new Function('device', body)(device) as ((...row: Arguments) => number | boolean)[];
  const found = names.map((name) => functions.find((one) => one.name === name)!);
  const bits = (row: Arguments, i: number): number => {
    const result = Number(run[i]!(...row));
    return found[i]!.returns === 'f32' ? device.bitsOf(result) : result >>> 0;
  };
  return { functions, roots: found, inNode: (rows) => rows.flatMap((row) => names.map((_, i) => bits(row, i))) };
}

/** What differs, as text; both zeros are one number, which min and max may sign either way. */
export function differences(
  { roots }: Programs,
  rows: readonly Arguments[],
  wanted: readonly number[],
  found: readonly number[],
): string[] {
  return wanted.flatMap((bits, i) => {
    const { name, returns } = roots[i % roots.length]!;
    const got = found[i]!;
    const zeros = returns === 'f32' && (bits << 1) >>> 0 === 0 && (got << 1) >>> 0 === 0;
    return bits === got || zeros
      ? []
      : [`${name}(${rows[Math.floor(i / roots.length)]}): ${bits} in Node, ${got} there`];
  });
}
