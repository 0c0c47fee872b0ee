import { expect, it } from 'vitest';
import { lowerFiles, lowerText } from '../../../codegen/lower/lower.js';
import { print, source } from './support.js';

it('prints scalars, parameters, locals and conversions', async () => {
  const text = await print(`
/** Rounds to the nearest code. Ties go to even. */
export function quantizeSymmetric(x: f32, inverseScale: f32, flag: bool): i32 {
  'device';
  const limit: f32 = 7;
  let code = clamp(round(x * inverseScale), -limit, limit);
  code += 0.5;
  code -= f32(i32(u32(flag)) + 1);
  const stored: f16 = f16(code);
  return i32(f32(stored)) % 3;
}`);
  expect(text).toMatchInlineSnapshot();
});

it('prints parentheses only where a target needs them', async () => {
  const text = await print(`
function precedence(a: f32, b: f32, m: u32, n: u32, k: i32): u32 {
  'device';
  const c = a - (b - a) * -b / (a + b);
  const d = a * (b * a) + (a + (b + 1));
  const flag = (a < b && b < c) || !(m === n || m > 3) && -a < -(-d);
  const masked = u32(((m & 0xff0000ff) | (n << 2)) ^ ~(m + n) ^ 1);
  const shifted = (m + n) >>> (n - 1);
  const kept = k >> 1 >> k;
  return flag ? u32(masked + shifted * u32(m / n)) : u32(kept) % 5;
}`);
  expect(text).toMatchInlineSnapshot();
});

it('prints loops, branches and early returns', async () => {
  const text = await print(`
const SKIP = 2 ** 4 - 1;
function loops(values: FixedArray<f32, 64>, limit: u32): f32 {
  'device';
  let sum: f32 = 0;
  for (let i = 0; i < values.length; i++) {
    if (i === SKIP) sum -= 1;
    else if (i > limit) { sum += values[i]!; } else { return sum; }
  }
  for (let i = 7; i >= 0; i -= 2) sum += values[i]!;
  for (let row = 0; row < 4; row++) {
    for (let column = row; column <= row + 2; column++) {
      values[column]! *= 2;
    }
  }
  for (let i = 0; i < 65; i++) { values[i % 64] = 0; }
  return sum;
}`);
  expect(text).toMatchInlineSnapshot();
});

it('prints arrays, vectors, intrinsics and calls', async () => {
  const text = await print(`
function norm(v: vec4f): f32 {
  'device';
  return sqrt(dot(v, v));
}
function fill(target: FixedArray<u32, typeof count>, count: Static<u32>, word: u32): u32 {
  'device';
  for (let i = 0; i < count; i++) target[i] = word;
  return count;
}
function all(target: FixedArray<u32, 4>, x: f32, w: u32): vec2f {
  'device';
  const words = zeros('u32', 8);
  const filled = fill(words, 8, w);
  fill(target, 4, filled);
  const v = vectorAdd(vectorScale(vec4f(x, 1, 2, 3), x), vectorSubtract(vec4f(0, 0, 0, x), vec4f(1, 1, 1, 1)));
  const near = fma(x, floor(x), ceil(x)) + trunc(x) + abs(x) + min(x, 1) - max(x, 2);
  const steep = exp(x) + exp2(x) + log(x) + log2(x) + sin(x) + cos(x) + inverseSqrt(x);
  const bits = u32(bitsOf(x) + countOneBits(w) + packHalf2(x, near) + umul(w, 0x9e3779b9) + uadd(w, 1));
  if (!isFiniteBits(steep)) return unpackHalf2(words[3]!);
  return vec2f(norm(v) + v.w + fromBits(bits), clamp(f32(clamp(i32(x), -2, 2)), 0, 1));
}`);
  expect(text).toMatchInlineSnapshot();
});

it('evaluates only the chosen side of a ternary in WGSL', async () => {
  const text = await print(`
function choose(x: f32, i: u32, count: u32, levels: Lookup<f32>): f32 {
  'device';
  const cheap = x < 0 ? -x : x;
  const guarded = i < count ? levels(i) : 0;
  let nested = 1 + (i < count ? (x > 1 ? levels(i) : exp(x)) : x);
  if (i > 0 && (i < count ? levels(i) : cheap) > 0) nested += guarded;
  nested = x > 2 ? sqrt(nested) : nested;
  return i < count ? levels(i) * nested : nested;
}`);
  expect(text).toMatchInlineSnapshot();
});

it('renames what either target reserves and keeps names apart', async () => {
  const text = await print(`
function names(half: f32, fooBar: f32, foo_bar: f32, float: f32): f32 {
  'device';
  const texture = half + fooBar;
  const override = texture * foo_bar;
  return override - float;
}`);
  expect(text).toMatchInlineSnapshot();
});

it('follows imports, aliases and re-exports to other files', async () => {
  const functions = await lowerFiles(['test/codegen/lower/fixtures/entry.ts']);
  expect(functions.map(({ name, file, position }) => `${name} ${file}:${position.line}`)).toMatchInlineSnapshot();
});

it('carries position, doc and types as plain JSON', async () => {
  const [one] = await lowerText(
    source("/** Adds one. And more. */\nfunction f(x: f32): f32 {\n  'device';\n  return x + 1;\n}"),
    'my.ts',
  );
  expect(JSON.parse(JSON.stringify(one))).toEqual(one);
  expect(one).toMatchInlineSnapshot();
});
