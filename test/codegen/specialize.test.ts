import { expect, it } from 'vitest';
import { printCuda } from '../../codegen/emit/cuda.js';
import { printWgsl } from '../../codegen/emit/wgsl.js';
import { lowerText } from '../../codegen/lower/lower.js';
import { emittedName, type Root, specialize } from '../../codegen/specialize.js';
import { source } from './lower/support.js';

async function run(text: string, roots: readonly Root[]): Promise<ReturnType<typeof specialize>> {
  const functions = await lowerText(source(text), 'my.ts');
  return specialize(roots, new Map(functions.map((one) => [one.name, one])));
}

const decoder = `
function pick(i: u32, levels: Lookup<f32>): f32 {
  'device';
  return levels(i);
}
function decode(bits: Static<u32>, offset: Static<i32>, code: u32, levels: Lookup<f32>): f32 {
  'device';
  const last = u32(u32(1 << bits) - 1);
  const table = zeros('f32', last + 1);
  for (let i = 0; i < last; i++) table[i] = pick(i, levels);
  if (bits > 3) {
    const step = f32(offset);
    return pick(code, levels) + step;
  } else {
    const step = table[last]!;
    return step;
  }
}`;

it('substitutes statics, folds constants and drops dead branches', async () => {
  const functions = await run(decoder, [
    { name: 'decode', statics: { bits: 4, offset: -3 } },
    { name: 'decode', statics: { bits: 2, offset: 0 } },
    { name: 'decode', statics: { bits: 4, offset: -3 } },
  ]);
  expect(functions.map((one) => one.emittedName)).toEqual(['pick', 'decode_4_m3', 'decode_2_0']);
  expect(`\n${printCuda(functions)}`).toMatchInlineSnapshot(`
    "
    // my.ts:3 pick
    template <typename Levels>
    __device__ __forceinline__ float pick(u32 i, Levels levels) {
      return levels(i);
    }

    // my.ts:7 decode, bits = 4, offset = -3
    template <typename Levels>
    __device__ __forceinline__ float decode_4_m3(u32 code, Levels levels) {
      float table[16] = {};
      #pragma unroll
      for (u32 i = 0u; i < 15u; i++) {
        table[i] = pick(i, levels);
      }
      return pick(code, levels) + -3.0f;
    }

    // my.ts:7 decode, bits = 2, offset = 0
    template <typename Levels>
    __device__ __forceinline__ float decode_2_0(u32 code, Levels levels) {
      float table[4] = {};
      #pragma unroll
      for (u32 i = 0u; i < 3u; i++) {
        table[i] = pick(i, levels);
      }
      const float step = table[3u];
      return step;
    }
    "
  `);
});

it('returns a result itself where branches on statics leave one value of it', async () => {
  const text = `
function kept(x: f32): f32 {
  'device';
  const named = f32(x * 2);
  return named;
}
function fill(table: FixedArray<f32, 2>): f32 {
  'device';
  table[0] = 1;
  return 2;
}
function chosen(way: Static<u32>, x: f32, table: FixedArray<f32, 2>): f32 {
  'device';
  let result = x;
  if (way === 1) result = f32(x * 3);
  if (way === 2) result = f32(result * 3);
  if (way === 3) {
    let filled = fill(table);
    filled = f32(table[0]! + x);
    return filled;
  }
  return result;
}`;
  const roots = [0, 1, 2, 3].map((way) => ({ name: 'chosen', statics: { way } }));
  const functions = await run(text, [{ name: 'kept', statics: {} }, ...roots]);
  const bodies = functions.map((one) => {
    const [, ...lines] = printWgsl([one]).trim().split('\n').slice(1, -1);
    return `${one.emittedName}: ${lines.map((line) => line.trim()).join(' ')}`;
  });
  expect(bodies).toMatchInlineSnapshot(`
    [
      "kept: let named: f32 = x * 2.0; return named;",
      "chosen_0: return x;",
      "chosen_1: return x * 3.0;",
      "chosen_2: var result: f32 = x; result = result * 3.0; return result;",
      "fill: (*table)[0u] = 1.0; return 2.0;",
      "chosen_3: var result: f32 = x; var filled: f32 = fill(table); filled = (*table)[0u] + x; return filled;",
    ]
  `);
});

it('binds tables to WGSL functions, one copy of a function per binding', async () => {
  const functions = await run(decoder, [
    { name: 'decode', statics: { bits: 1, offset: 0 }, lookups: { levels: 'load_keys' } },
    { name: 'decode', statics: { bits: 1, offset: 0 }, lookups: { levels: 'load_values' } },
  ]);
  expect(`\n${printWgsl(functions)}`).toMatchInlineSnapshot(`
    "
    // my.ts:3 pick
    fn pick(i: u32) -> f32 {
      return load_keys(i);
    }

    // my.ts:7 decode, bits = 1, offset = 0
    fn decode_1_0(code: u32) -> f32 {
      var table: array<f32, 2> = array<f32, 2>();
      for (var i: u32 = 0u; i < 1u; i++) {
        table[i] = pick(i);
      }
      let step: f32 = table[1u];
      return step;
    }

    // my.ts:3 pick
    fn pick_with_load_values(i: u32) -> f32 {
      return load_values(i);
    }

    // my.ts:7 decode, bits = 1, offset = 0
    fn decode_1_0_with_load_values(code: u32) -> f32 {
      var table: array<f32, 2> = array<f32, 2>();
      for (var i: u32 = 0u; i < 1u; i++) {
        table[i] = pick_with_load_values(i);
      }
      let step: f32 = table[1u];
      return step;
    }
    "
  `);
});

it('keeps a scope of its own where inlining a branch would repeat a name', async () => {
  const functions = await run(
    `function f(bits: Static<u32>, x: f32): f32 {
  'device';
  let sum = x;
  if (bits === 4) { const twice = x * 2; sum += twice; }
  if (bits > 2) { const twice = x * 3; sum += twice; }
  return sum;
}`,
    [{ name: 'f', statics: { bits: 4 } }],
  );
  expect(`\n${printCuda(functions)}`).toMatchInlineSnapshot(`
    "
    // my.ts:2 f, bits = 4
    __device__ __forceinline__ float f_4(float x) {
      float sum = x;
      {
        const float twice = x * 2.0f;
        sum += twice;
      }
      {
        const float twice = x * 3.0f;
        sum += twice;
      }
      return sum;
    }
    "
  `);
});

it('names by parameter order', () => {
  expect(emittedName('quantizeSymmetric', [4, 64])).toBe('quantize_symmetric_4_64');
  expect(emittedName('half', [])).toBe('half_');
  expect(emittedName('toFP8', [])).toBe('to_fp8');
});

it('refuses what only the numbers show', async () => {
  const inner = (
    body: string,
  ): string => `function g(n: Static<u32>, a: FixedArray<f32, typeof n>): f32 { 'device'; return a[0]!; }
function f(n: Static<u32>, x: u32, a: FixedArray<f32, 4>): f32 {
  'device';
  ${body}
}`;
  const cases: [string, Root][] = [
    [inner('return a[n]!;'), { name: 'f', statics: { n: 4 } }],
    [inner('return f32(x % (n - 4));'), { name: 'f', statics: { n: 4 } }],
    [inner('return f32(u32(x / (n - 4)));'), { name: 'f', statics: { n: 4 } }],
    [inner('return f32(x >>> n);'), { name: 'f', statics: { n: 32 } }],
    [inner('return g(n, a);'), { name: 'f', statics: { n: 8 } }],
    [inner("const b = zeros('f32', n); return b[0]!;"), { name: 'f', statics: { n: 0 } }],
    [inner('return a[0]!;'), { name: 'f', statics: {} }],
    [inner('return a[0]!;'), { name: 'f', statics: { n: 1.5 } }],
    [inner('return a[0]!;'), { name: 'f', statics: { n: 1, m: 2 } }],
    [inner('return a[0]!;'), { name: 'h', statics: {} }],
  ];
  const outcomes = await Promise.all(
    cases.map(([text, root]) =>
      run(text, [root]).then(
        () => 'PASSED',
        (error: unknown) => (error as Error).message,
      ),
    ),
  );
  expect(outcomes).toMatchInlineSnapshot(`
    [
      "my.ts:5:10: expected an index in 0 .. 3, got 4. Correct the index, or guard it with an if on the static.",
      "my.ts:5:14: expected a divisor that is not 0, got 0. Guard it with an if on the static.",
      "my.ts:5:18: expected a divisor that is not 0, got 0. Guard it with an if on the static.",
      "my.ts:5:14: expected a shift by 0 .. 31, got 32. Guard it with an if on the static.",
      "my.ts:5:10: expected FixedArray<f32, 8> for a of g, got FixedArray<f32, 4>. Pass an array of that length, or another static that fixes it.",
      "my.ts:3:1: expected an array length above 0, got 0. Pass other statics.",
      "my.ts:3:1: expected f with a whole number in 0 .. 4294967295 for its static n, got none. Pass statics: { n: ... }.",
      "my.ts:3:1: expected f with a whole number in 0 .. 4294967295 for its static n, got 1.5. Pass statics: { n: ... }.",
      "my.ts:3:1: expected statics of f (n), got m. Remove it, or declare it Static<u32>.",
      "h: expected a lowered device function, got none of that name. Lower the file that declares it, or correct the name.",
    ]
  `);
});

it('refuses loops that would wrap around on a device', async () => {
  const loop = (head: string): string => `function f(z: Static<u32>, n: Static<i32>): u32 {
  'device';
  let sum: u32 = 0;
  ${head} sum = u32(sum + 1);
  return sum;
}`;
  const outcome = (head: string, z: number, n = 0): Promise<string> =>
    run(loop(head), [{ name: 'f', statics: { z, n } }]).then(
      () => 'PASSED',
      (error: unknown) => (error as Error).message,
    );
  const drop = 'Drop the u32: a loop that counts down is an i32, read as u32(i).';
  const end = 'A device wraps around there: end the loop earlier, or take another step.';
  const at = 'my.ts:5:3: expected a loop that ends, got';
  const down = 'for (let i: u32 = 8; i >= z; i--)';
  expect(await outcome(down, 0)).toBe(`${at} i, a u32 that goes on to -1 after its last turn. ${drop}`);
  expect(await outcome(down, 1)).toBe('PASSED');
  const strided = 'for (let i: u32 = 8; i > 0; i -= z)';
  expect(await outcome(strided, 3)).toBe(`${at} i, a u32 that goes on to -1 after its last turn. ${drop}`);
  expect(await outcome(strided, 4)).toBe('PASSED');
  const up = 'for (let i: u32 = 0; i <= z; i++)';
  expect(await outcome(up, 2 ** 32 - 1)).toBe(`${at} i, a u32 that goes on to 4294967296 after its last turn. ${end}`);
  expect(await outcome(up, 2 ** 32 - 2)).toBe('PASSED');
  const signed = 'for (let i = 0; i <= n; i += 2)';
  expect(await outcome(signed, 0, 2 ** 31 - 1)).toBe(
    `${at} i, an i32 that goes on to 2147483648 after its last turn. ${end}`,
  );
  expect(await outcome(signed, 0, 2 ** 31 - 3)).toBe('PASSED');
  // Inside another loop the numbers are ranges.
  const nested = (bound: string) => `for (let j: u32 = 0; j < 8; j++) for (let i: u32 = 9; ${bound})`;
  expect(await outcome(nested('i >= j; i--'), 0)).toBe(
    `my.ts:5:36: expected a loop that ends, got i, a u32 that may go on to -1 after its last turn. ${drop}`,
  );
  for (const bound of ['i > j; i--', 'i >= j + 1; i--', 'i <= j + z; i++', 'i < min(j * 4, z); i += 2']) {
    expect(await outcome(nested(bound), 20)).toBe('PASSED');
  }
});
