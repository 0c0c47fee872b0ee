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
  expect(text).toMatchInlineSnapshot(`
    "
    // my.ts:4 quantizeSymmetric
    // Rounds to the nearest code.
    __device__ __forceinline__ int quantize_symmetric(float x, float inverse_scale, bool flag) {
      float code = fminf(fmaxf(rintf(x * inverse_scale), -7.0f), 7.0f);
      code += 0.5f;
      code -= float(int(u32(flag)) + 1);
      const float stored = round_to_half(code);
      return int(stored) % 3;
    }

    // The nearest float16, ties to even.
    fn round_to_half(x: f32) -> f32 {
      let sign = bitcast<u32>(x) & 0x80000000u;
      let size = bitcast<u32>(x) & 0x7fffffffu;
      if (size > 0x7f800000u) {
        return x;
      }
      // Ten bits of the fraction stay; beyond the largest half lies infinity.
      var rounded = (size + 0xfffu + ((size >> 13u) & 1u)) & 0xffffe000u;
      rounded = select(rounded, 0x7f800000u, rounded >= 0x47800000u);
      // Below 2^-14 halves are the multiples of 2^-24.
      if (size < 0x38800000u) {
        rounded = bitcast<u32>(round(bitcast<f32>(size) * 0x1p24f) * 0x1p-24f);
      }
      return bitcast<f32>(sign | rounded);
    }

    // my.ts:4 quantizeSymmetric
    // Rounds to the nearest code.
    fn quantize_symmetric(x: f32, inverse_scale: f32, flag: bool) -> i32 {
      var code: f32 = clamp(round(x * inverse_scale), -7.0, 7.0);
      code += 0.5;
      code -= f32(i32(u32(flag)) + 1);
      let stored: f32 = round_to_half(code);
      return i32(stored) % 3;
    }
    "
  `);
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
  expect(text).toMatchInlineSnapshot(`
    "
    // my.ts:3 precedence
    __device__ __forceinline__ u32 precedence(float a, float b, u32 m, u32 n, int k) {
      const float c = a - (b - a) * -b / (a + b);
      const float d = a * (b * a) + (a + (b + 1.0f));
      const bool flag = (a < b && b < c) || (!(m == n || m > 3u) && -a < -(-d));
      const u32 masked = ((m & 0xff0000ffu) | (n << 2u)) ^ ~(m + n) ^ 1u;
      const u32 shifted = (m + n) >> (n - 1u);
      const int kept = (k >> 1u) >> k;
      return flag ? masked + shifted * (m / n) : u32(kept) % 5u;
    }

    // my.ts:3 precedence
    fn precedence(a: f32, b: f32, m: u32, n: u32, k: i32) -> u32 {
      let c: f32 = a - (b - a) * -b / (a + b);
      let d: f32 = a * (b * a) + (a + (b + 1.0));
      let flag: bool = (a < b && b < c) || (!(m == n || m > 3u) && -a < -(-d));
      let masked: u32 = ((m & 0xff0000ffu) | (n << 2u)) ^ ~(m + n) ^ 1u;
      let shifted: u32 = (m + n) >> (n - 1u);
      let kept: i32 = (k >> 1u) >> u32(k);
      return select(u32(kept) % 5u, masked + shifted * (m / n), flag);
    }
    "
  `);
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
  expect(text).toMatchInlineSnapshot(`
    "
    // my.ts:4 loops
    __device__ __forceinline__ float loops(float (&values)[64], u32 limit) {
      float sum = 0.0f;
      #pragma unroll
      for (u32 i = 0u; i < 64u; i++) {
        if (i == 15u) {
          sum -= 1.0f;
        } else if (i > limit) {
          sum += values[i];
        } else {
          return sum;
        }
      }
      #pragma unroll
      for (int i = 7; i >= 0; i -= 2) {
        sum += values[i];
      }
      #pragma unroll
      for (u32 row = 0u; row < 4u; row++) {
        for (u32 column = row; column <= row + 2u; column++) {
          values[column] *= 2.0f;
        }
      }
      for (u32 i = 0u; i < 65u; i++) {
        values[i % 64u] = 0.0f;
      }
      return sum;
    }

    // my.ts:4 loops
    fn loops(values: ptr<function, array<f32, 64>>, limit: u32) -> f32 {
      var sum: f32 = 0.0;
      for (var i: u32 = 0u; i < 64u; i++) {
        if (i == 15u) {
          sum -= 1.0;
        } else if (i > limit) {
          sum += (*values)[i];
        } else {
          return sum;
        }
      }
      for (var i: i32 = 7; i >= 0; i -= 2) {
        sum += (*values)[i];
      }
      for (var row: u32 = 0u; row < 4u; row++) {
        for (var column: u32 = row; column <= row + 2u; column++) {
          (*values)[column] *= 2.0;
        }
      }
      for (var i: u32 = 0u; i < 65u; i++) {
        (*values)[i % 64u] = 0.0;
      }
      return sum;
    }
    "
  `);
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
  expect(text).toMatchInlineSnapshot(`
    "
    // my.ts:7 fill, count = 8
    __device__ __forceinline__ u32 fill_8(u32 (&target_)[8], u32 word) {
      #pragma unroll
      for (u32 i = 0u; i < 8u; i++) {
        target_[i] = word;
      }
      return 8u;
    }

    // my.ts:7 fill, count = 4
    __device__ __forceinline__ u32 fill_4(u32 (&target_)[4], u32 word) {
      #pragma unroll
      for (u32 i = 0u; i < 4u; i++) {
        target_[i] = word;
      }
      return 4u;
    }

    // my.ts:3 norm
    __device__ __forceinline__ float norm_(float4 v) {
      return sqrtf(vector_dot(v, v));
    }

    // my.ts:12 all
    __device__ __forceinline__ float2 all(u32 (&target_)[4], float x, u32 w) {
      u32 words[8] = {};
      const u32 filled = fill_8(words, w);
      fill_4(target_, filled);
      const float4 v = vector_add(vector_scale(make_float4(x, 1.0f, 2.0f, 3.0f), x), vector_subtract(make_float4(0.0f, 0.0f, 0.0f, x), make_float4(1.0f, 1.0f, 1.0f, 1.0f)));
      const float near = fmaf(x, floorf(x), ceilf(x)) + truncf(x) + fabsf(x) + fminf(x, 1.0f) - fmaxf(x, 2.0f);
      const float steep = expf(x) + exp2f(x) + logf(x) + log2f(x) + sinf(x) + cosf(x) + rsqrtf(x);
      const u32 bits = __float_as_uint(x) + u32(__popc(w)) + pack_half2(x, near) + w * 0x9e3779b9u + (w + 1u);
      if (!((__float_as_uint(steep) & 0x7f800000u) != 0x7f800000u)) {
        return unpack_half2(words[3u]);
      }
      return make_float2(norm_(v) + v.w + __uint_as_float(bits), fminf(fmaxf(float(min(max(int(x), -2), 2)), 0.0f), 1.0f));
    }

    // my.ts:7 fill, count = 8
    fn fill_8(target_: ptr<function, array<u32, 8>>, word: u32) -> u32 {
      for (var i: u32 = 0u; i < 8u; i++) {
        (*target_)[i] = word;
      }
      return 8u;
    }

    // my.ts:7 fill, count = 4
    fn fill_4(target_: ptr<function, array<u32, 4>>, word: u32) -> u32 {
      for (var i: u32 = 0u; i < 4u; i++) {
        (*target_)[i] = word;
      }
      return 4u;
    }

    // my.ts:3 norm
    fn norm_(v: vec4f) -> f32 {
      return sqrt(dot(v, v));
    }

    // my.ts:12 all
    fn all(target_: ptr<function, array<u32, 4>>, x: f32, w: u32) -> vec2f {
      var words: array<u32, 8> = array<u32, 8>();
      let filled: u32 = fill_8(&words, w);
      _ = fill_4(target_, filled);
      let v: vec4f = vec4f(x, 1.0, 2.0, 3.0) * x + (vec4f(0.0, 0.0, 0.0, x) - vec4f(1.0, 1.0, 1.0, 1.0));
      let near: f32 = fma(x, floor(x), ceil(x)) + trunc(x) + abs(x) + min(x, 1.0) - max(x, 2.0);
      let steep: f32 = exp(x) + exp2(x) + log(x) + log2(x) + sin(x) + cos(x) + inverseSqrt(x);
      let bits: u32 = bitcast<u32>(x) + countOneBits(w) + pack2x16float(vec2f(x, near)) + w * 0x9e3779b9u + (w + 1u);
      if (!((bitcast<u32>(steep) & 0x7f800000u) != 0x7f800000u)) {
        return unpack2x16float(words[3u]);
      }
      return vec2f(norm_(v) + v.w + bitcast<f32>(bits), clamp(f32(clamp(i32(x), -2, 2)), 0.0, 1.0));
    }
    "
  `);
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
  expect(text).toMatchInlineSnapshot(`
    "
    // my.ts:3 choose
    template <typename Levels>
    __device__ __forceinline__ float choose(float x, u32 i, u32 count, Levels levels) {
      const float cheap = x < 0.0f ? -x : x;
      const float guarded = i < count ? levels(i) : 0.0f;
      float nested = 1.0f + (i < count ? (x > 1.0f ? levels(i) : expf(x)) : x);
      if (i > 0u && (i < count ? levels(i) : cheap) > 0.0f) {
        nested += guarded;
      }
      nested = x > 2.0f ? sqrtf(nested) : nested;
      return i < count ? levels(i) * nested : nested;
    }

    // my.ts:3 choose
    fn choose(x: f32, i: u32, count: u32) -> f32 {
      let cheap: f32 = select(x, -x, x < 0.0);
      var guarded: f32 = f32();
      if (i < count) {
        guarded = load_levels(i);
      } else {
        guarded = 0.0;
      }
      var chosen_1: f32 = f32();
      if (i < count) {
        if (x > 1.0) {
          chosen_1 = load_levels(i);
        } else {
          chosen_1 = exp(x);
        }
      } else {
        chosen_1 = x;
      }
      var nested: f32 = 1.0 + chosen_1;
      var chosen_2: bool = i > 0u;
      if (chosen_2) {
        var chosen_3: f32 = f32();
        if (i < count) {
          chosen_3 = load_levels(i);
        } else {
          chosen_3 = cheap;
        }
        chosen_2 = chosen_3 > 0.0;
      }
      if (chosen_2) {
        nested += guarded;
      }
      if (x > 2.0) {
        nested = sqrt(nested);
      }
      if (i < count) {
        return load_levels(i) * nested;
      } else {
        return nested;
      }
    }
    "
  `);
});

it('renames what either target reserves and keeps names apart', async () => {
  const text = await print(`
function names(half: f32, fooBar: f32, foo_bar: f32, float: f32): f32 {
  'device';
  const texture = half + fooBar;
  const override = texture * foo_bar;
  return override - float;
}`);
  expect(text).toMatchInlineSnapshot(`
    "
    // my.ts:3 names
    __device__ __forceinline__ float names(float half_, float foo_bar, float foo_bar_2, float float_) {
      const float texture = half_ + foo_bar;
      const float override_ = texture * foo_bar_2;
      return override_ - float_;
    }

    // my.ts:3 names
    fn names(half_: f32, foo_bar: f32, foo_bar_2: f32, float_: f32) -> f32 {
      let texture: f32 = half_ + foo_bar;
      let override_: f32 = texture * foo_bar_2;
      return override_ - float_;
    }
    "
  `);
});

it('follows imports, aliases and re-exports to other files', async () => {
  const functions = await lowerFiles(['test/codegen/lower/fixtures/entry.ts']);
  expect(functions.map(({ name, file, position }) => `${name} ${file}:${position.line}`)).toMatchInlineSnapshot(`
    [
      "scale test/codegen/lower/fixtures/leaf.ts:7",
      "entry test/codegen/lower/fixtures/entry.ts:7",
    ]
  `);
});

it('carries position, doc and types as plain JSON', async () => {
  const [one] = await lowerText(
    source("/** Adds one. And more. */\nfunction f(x: f32): f32 {\n  'device';\n  return x + 1;\n}"),
    'my.ts',
  );
  expect(JSON.parse(JSON.stringify(one))).toEqual(one);
  expect(one).toMatchInlineSnapshot(`
    {
      "body": [
        {
          "at": {
            "column": 3,
            "line": 5,
          },
          "kind": "return",
          "value": {
            "kind": "binary",
            "left": {
              "kind": "name",
              "name": "x",
              "type": "f32",
            },
            "operator": "+",
            "right": {
              "kind": "literal",
              "type": "f32",
              "value": 1,
            },
            "type": "f32",
          },
        },
      ],
      "doc": "Adds one.",
      "file": "my.ts",
      "name": "f",
      "params": [
        {
          "name": "x",
          "static": false,
          "type": "f32",
        },
      ],
      "position": {
        "column": 1,
        "line": 3,
      },
      "returns": "f32",
    }
  `);
});

it('calls built-in device functions that a user file imports from kvforge', async () => {
  const [one, ...others] = await lowerText(`import { hashBits, type u32 } from 'kvforge';
export function salted(x: u32): u32 {
  'device';
  return hashBits(x);
}`);
  expect(others).toEqual([]);
  expect(one?.body[0]).toMatchObject({ kind: 'return', value: { kind: 'call', function: 'hashBits' } });
});

it('reads numbers in every notation', async () => {
  const text = await print(`
const TINY = 1e-30;
function numbers(x: f32, w: u32): f32 {
  'device';
  const scaled = x * TINY + 1e9 - 1_000 * 0.1 + 2.5e+20;
  return w === 0xff || w === 0b11 ? scaled : -1e-7;
}`);
  expect(text).toMatchInlineSnapshot(`
    "
    // my.ts:4 numbers
    __device__ __forceinline__ float numbers(float x, u32 w) {
      const float scaled = x * 1.0e-30f + 1000000000.0f - 100.0f + 250000000000000000000.0f;
      return w == 255u || w == 3u ? scaled : -1.0e-7f;
    }

    // my.ts:4 numbers
    fn numbers(x: f32, w: u32) -> f32 {
      let scaled: f32 = x * 1.0e-30 + 1000000000.0 - 100.0 + 250000000000000000000.0;
      return select(-1.0e-7, scaled, w == 255u || w == 3u);
    }
    "
  `);
});
