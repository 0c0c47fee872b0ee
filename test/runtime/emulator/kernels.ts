import type { KernelText } from '../../../runtime/device.js';

interface Shape {
  readonly threads?: number;
  readonly dynamic?: number;
}

/**
 * A kernel of the given statements. Parameters are words of the form `const f32 a` or `u32 sum`: reads and read_writes.
 * The first statement is on line 3 of the text.
 */
export function kernel(entry: string, parameters: readonly string[], body: string, shape: Shape = {}): KernelText {
  const bindings = parameters.map((parameter) => {
    const [, constant, element, name] = /^(const )?(\w+) (\w+)$/.exec(parameter)!;
    return { constant: constant !== undefined, element: element!, name: name! };
  });
  const pointers = bindings.map(
    ({ constant, element, name }) =>
      `${constant ? 'const ' : ''}${element === 'f32' ? 'float' : element}* __restrict__ ${name}`,
  );
  return {
    descriptor: {
      stage: 'test',
      entry,
      file: `${entry}.cu`,
      target: 'cuda',
      bindings: bindings.map(({ constant, element, name }) => ({
        name,
        access: constant ? 'read' : 'read_write',
        element: element === 'f32' ? 'f32' : 'u32',
        holds: 'words',
      })),
      threads: shape.threads ?? 32,
      grid: [1, 1, 1],
      sharedBytes: { fixed: 0, dynamic: shape.dynamic ?? 0 },
      requires: [],
      tunables: {},
    },
    source: `#include "prelude.cuh"\nextern "C" __global__ void ${entry}(${pointers.join(', ')}) {\n${body}\n}\n`,
  };
}

export const add = kernel(
  'add',
  ['const f32 a', 'const f32 b', 'f32 c'],
  `const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
c[i] = a[i] + b[i];`,
);

export const reduce = kernel(
  'reduce',
  ['const f32 a', 'f32 sum'],
  `__shared__ float partial[8];
float value = a[blockIdx.x * 256 + threadIdx.x];
for (u32 distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
if (lane_id() == 0) partial[threadIdx.x / 32] = value;
__syncthreads();
if (threadIdx.x < 8) {
  float total = partial[threadIdx.x];
  for (u32 distance = 4; distance > 0; distance /= 2) total += __shfl_down_sync(0xffu, total, distance);
  if (threadIdx.x == 0) sum[blockIdx.x] = total;
}`,
  { threads: 256 },
);

export const shuffles = kernel(
  'shuffles',
  ['u32 out'],
  `const u32 t = threadIdx.x;
out[t] = __shfl_sync(0xffffffffu, t, 5);
out[32 + t] = __shfl_sync(0xffffffffu, t, 3, 8);
out[64 + t] = __shfl_up_sync(0xffffffffu, t, 2);
out[96 + t] = __shfl_down_sync(0xffffffffu, t, 3, 16);
out[128 + t] = __ballot_sync(0xffffffffu, t % 3 == 0);
out[160 + t] = __any_sync(0xffffffffu, t == 9) ? 1u : 0u;
out[192 + t] = t < 16 ? __ballot_sync(0xffffu, t > 7) : 0u;
const unsigned long long wide = __shfl_xor_sync(0xffffffffu, 0x100000000ull * t + 7, 31);
out[224 + t] = (u32)(wide >> 32);`,
);

/** d (16x8, f32) = c + a (16x16 halves, row-major) * b (16x8 halves, row-major), fragments filled by the PTX layout. */
export const product = kernel(
  'product',
  ['const u32 a', 'const u32 b', 'const f32 c', 'f32 d'],
  `const u16* const halves = reinterpret_cast<const u16*>(b);
const u32 g = threadIdx.x / 4, t = threadIdx.x % 4;
const u32 af[4] = {a[g * 8 + t], a[(g + 8) * 8 + t], a[g * 8 + t + 4], a[(g + 8) * 8 + t + 4]};
u32 bf[2];
for (u32 i = 0; i < 2; ++i) {
  bf[i] = (u32)halves[(2 * t + 8 * i) * 8 + g] | (u32)halves[(2 * t + 8 * i + 1) * 8 + g] << 16;
}
float df[4];
for (u32 i = 0; i < 4; ++i) df[i] = c[(g + i / 2 * 8) * 8 + 2 * t + i % 2];
mma_m16n8k16(df, af, bf);
for (u32 i = 0; i < 4; ++i) d[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = df[i];`,
);

/** Loads four 8x8 matrices of halves: 32 rows of 8 halves in, 4 words a lane out. */
export const matrices = kernel(
  'matrices',
  ['const u32 a', 'u32 out'],
  `__shared__ __align__(16) u32 rows[128];
for (u32 i = 0; i < 4; ++i) rows[threadIdx.x * 4 + i] = a[threadIdx.x * 4 + i];
__syncthreads();
u32 four[4];
ldmatrix_x4(four, rows + threadIdx.x * 4);
for (u32 i = 0; i < 4; ++i) out[threadIdx.x * 4 + i] = four[i];`,
);

/** As `matrices`, and loads them transposed. */
export const transposedMatrices = kernel(
  'transposed_matrices',
  ['const u32 a', 'u32 out'],
  `__shared__ __align__(16) u32 rows[128];
for (u32 i = 0; i < 4; ++i) rows[threadIdx.x * 4 + i] = a[threadIdx.x * 4 + i];
__syncthreads();
u32 four[4];
ldmatrix_x4_trans(four, rows + threadIdx.x * 4);
for (u32 i = 0; i < 4; ++i) out[threadIdx.x * 4 + i] = four[i];`,
);

function copyBody(wait: string): string {
  return `float* const tile = reinterpret_cast<float*>(shared_memory);
cp_async_16(tile + 4 * threadIdx.x, a + 4 * threadIdx.x);
cp_async_commit();
for (u32 i = threadIdx.x; i < 64; i += 32) cp_async_4(tile + 128 + i, a + 128 + i);
cp_async_4(tile + 192 + threadIdx.x, a + 192 + threadIdx.x);
cp_async_commit();
${wait}
__syncthreads();
for (u32 i = threadIdx.x; i < 224; i += 32) b[i] = tile[223 - i];`;
}
const withDynamic = (text: KernelText): KernelText => ({
  ...text,
  source: text.source.replace(') {\n', ') { extern __shared__ __align__(16) unsigned char shared_memory[];\n'),
});
const copies = ['const f32 a', 'f32 b'];
export const copyWaits = withDynamic(kernel('copy_waits', copies, copyBody('cp_async_wait<0>();'), { dynamic: 896 }));
export const copyWaitsOne = withDynamic(
  kernel('copy_waits_one', copies, copyBody('cp_async_wait<1>();'), { dynamic: 896 }),
);
export const copyForgets = withDynamic(kernel('copy_forgets', copies, copyBody(''), { dynamic: 896 }));

/** All 65536 halves to floats and back, and words of floats to halves in the three ways. */
export const halves = kernel(
  'halves',
  ['f32 all', 'u32 back', 'const f32 a', 'u32 rounded', 'u32 saturated', 'u32 packed'],
  `const u32 i = blockIdx.x * 256 + threadIdx.x;
all[i] = half_to_float((u16)i);
back[i] = float_to_half(all[i]);
rounded[i] = float_to_half(a[i]);
saturated[i] = float_to_half_saturated(a[i]);
packed[i] = pack_half2(round_to_half(a[i]), a[i]);
const float2 pair = unpack_half2(packed[i]);
if (pair.x == pair.x && pair.x != pair.y) packed[i] = 0;`,
  { threads: 256 },
);

/** The 256 bytes, four a word, as signed integers in f16. */
export const signedBytes = kernel(
  'signed_bytes',
  ['const u32 words', 'u32 halves'],
  `u32 pairs[2];
unpack_signed_bytes(pairs, words[threadIdx.x]);
halves[threadIdx.x * 2] = pairs[0];
halves[threadIdx.x * 2 + 1] = pairs[1];`,
  { threads: 64 },
);

export const atomics = kernel(
  'atomics',
  ['u32 counts', 'i32 extremes', 'f32 sum'],
  `__shared__ u32 local;
if (threadIdx.x == 0) local = 0;
__syncthreads();
atomicAdd(&local, 1u);
__syncthreads();
if (threadIdx.x == 0) atomicAdd(&counts[0], local);
atomicMax(&counts[1], blockIdx.x * 32 + threadIdx.x);
atomicMin(&counts[2], 100 - threadIdx.x);
if (atomicCAS(&counts[3], 0u, 1u) == 0u) atomicExch(&counts[4], 77u);
atomicMax(&extremes[0], (i32)threadIdx.x - 50);
atomicMin(&extremes[1], (i32)threadIdx.x - 50);
atomicAdd(&extremes[2], -1);
atomicAdd(&sum[0], 0.5f);`,
);

export const mergeLast = kernel(
  'merge_last',
  ['const f32 a', 'f32 partials', 'u32 counter', 'f32 sum'],
  `__shared__ bool last;
partials[blockIdx.x * 32 + threadIdx.x] = a[blockIdx.x * 32 + threadIdx.x] * 2.0f;
__threadfence();
__syncthreads();
if (threadIdx.x == 0) last = atomicAdd(&counter[0], 1u) == gridDim.x - 1;
__syncthreads();
if (!last) return;
__threadfence();
float total = 0.0f;
for (u32 block = 0; block < gridDim.x; ++block) total += partials[block * 32 + threadIdx.x];
sum[threadIdx.x] = total;`,
);

/** Names of both preludes that no kernel above uses; each slot of `out` is a value that names() in the test knows. */
export const names = kernel(
  'names',
  ['const f32 a', 'f32 out'],
  `if (threadIdx.x != 0) return;
const float4 v = *reinterpret_cast<const float4*>(a);
const uint4 w = make_uint4(1, 2, 3, 4);
const i32 quarter = __float_as_int(0.25f);
u32 at = 0;
out[at++] = v.x + v.y + v.z + v.w + __ldg(a + 4);
out[at++] = (float)(w.x + w.y + w.z + w.w);
out[at++] = clamp(5.0f, 0.0f, 2.0f) + (float)clamp(-3, -2, 2) + (float)clamp(7u, 1u, 3u);
out[at++] = fminf(fmaxf(v.x, NAN), INFINITY);
out[at++] = __int_as_float(quarter) + __uint_as_float(__float_as_uint(2.0f));
out[at++] = rsqrtf(4.0f) + sqrtf(9.0f) + rintf(2.5f) + floorf(-0.5f) + fabsf(-1.0f);
out[at++] = fmaf(3.0f, 4.0f, 5.0f) + exp2f(3.0f) + ldexpf(1.0f, 4);
out[at++] = (float)__float2int_rn(2.5f) + (float)__float2uint_rn(3.5f) + (float)__float2int_rz(-1.9f);
out[at++] = (float)(__popc(0xf0u) + __clz(1) + __ffs(8));
out[at++] = (float)__dp4a(0x01020304, 0x01010101, 5) + (float)__byte_perm(0x44332211u, 0u, 0x4441u);
out[at++] = (float)(min(3, 4) + max(3, 4)) + (float)(min(3u, 4u) + max(3u, 4u));
out[at++] = (float)(__umulhi(0x80000000u, 6u) + __brev(0x80000000u) + __funnelshift_r(0u, 1u, 31u));
const float2 pair = make_float2(1.0f, 2.0f);
out[at++] = pair.x + pair.y + (float)(blockDim.x + gridDim.x + warpSize);`,
);

/** Kernels that are right, for both compilers. */
export const goodKernels: readonly KernelText[] = [
  add,
  reduce,
  shuffles,
  product,
  matrices,
  copyWaits,
  halves,
  atomics,
  mergeLast,
  names,
];
