/** Names as kernels print them. */

export function snakeCase(name: string): string {
  const parts = name.replace(/[^A-Za-z0-9_]/g, '_').replace(/([a-z0-9])([A-Z])/g, '$1_$2');
  const snake = parts
    .replace(/([A-Z])([A-Z][a-z])/g, '$1_$2')
    .toLowerCase()
    .replace(/_{2,}/g, '_')
    .replace(/^_/, 'u_');
  return snake;
}

const wgslWords = `alias break case const const_assert continue continuing default diagnostic discard else enable false
  fn for if let loop override requires return struct switch true var while array atomic bool f16 f32 i32 u32 ptr sampler
  vec2 vec3 vec4 vec2f vec3f vec4f vec2i vec3i vec4i vec2u vec3u vec4u abstract active alignas alignof as asm async
  attribute auto await become cast catch class coherent column_major common compile concept consteval constexpr
  constinit crate debugger decltype delete demote do dynamic_cast enum explicit export extends extern external
  fallthrough filter final finally friend from fxgroup get goto groupshared highp impl implements import inline
  instanceof interface layout lowp macro match mediump meta mod module move mut mutable namespace new nil noexcept
  noinline nointerpolation noncoherent noperspective null nullptr of operator package packoffset partition pass patch
  pixelfragment precise precision premerge priv protected pub public readonly ref regardless register reinterpret_cast
  require resource restrict self set shared sizeof smooth snorm static static_assert static_cast std subroutine super
  target template this thread_local throw trait try type typedef typeid typename typeof union unless unorm unsafe
  unsized use using varying virtual volatile wgsl where with writeonly yield`;
const cudaWords = `and and_eq bitand bitor char compl double float float2 float3 float4 half int int2 int3 int4 long not
  not_eq or or_eq private short signed uint2 uint3 uint4 unsigned void xor xor_eq wchar_t`;
const calledFunctions = `abs bitcast ceil clamp cos dot exp exp2 floor fma log log2 max min pack2x16float round select sin
  sqrt trunc unpack2x16float expf exp2f logf log2f sinf cosf fmaf fabsf fminf fmaxf floorf ceilf truncf rintf sqrtf
  rsqrtf pack_half2 unpack_half2 round_to_half vector_add vector_dot vector_multiply vector_scale vector_subtract`;

/** What a local must not be called: words of either language, and the functions printed code calls. */
const reserved: ReadonlySet<string> = new Set([wgslWords, cudaWords, calledFunctions].join(' ').split(/\s+/));

/** What CUDA declares for every text, and a function of the same parameters would declare again. */
const cudaFunctions: ReadonlySet<string> = new Set(
  `abs acos acosh asin asinh atan atan2 atanh brev cbrt ceil clz copysign cos cosh cospi erf erfc erfcinv erfcx erfinv
  exp exp10 exp2 expm1 fabs fdim fdividef ffs floor fma fmax fmin fmod frexp hypot ilogb isfinite isinf isnan j0 j1 jn
  labs ldexp lgamma llabs llmax llmin log log10 log1p log2 logb lrint lround mad24 max min modf mul24 mulhi nan
  nearbyint nextafter norm norm3d norm4d normcdf normcdfinv popc pow powf powi rcbrt remainder remquo rhypot rint rnorm
  rnorm3d rnorm4d round rsqrt sad saturate scalbln scalbn signbit sin sincos sincospi sinh sinpi sqrt tan tanh tgamma
  trunc ullmax ullmin umax umin umul24 umulhi usad y0 y1 yn assert printf malloc free memcpy memset clock trap main`
    .split(/\s+/)
    .flatMap((name) => [name, `${name}f`]),
);

/** Gives every name of one function its printed form, the same each time and different from all others. */
export function createNamer(taken: ReadonlySet<string>): (name: string) => string {
  const given = new Map<string, string>();
  const used = new Set<string>(taken);
  return (name) => {
    const known = given.get(name);
    if (known !== undefined) return known;
    let printed = snakeCase(name);
    if (reserved.has(printed)) printed = `${printed}_`;
    const base = printed;
    for (let i = 2; used.has(printed); i++) printed = `${base}_${i}`;
    given.set(name, printed);
    used.add(printed);
    return printed;
  };
}

/**
 * The printed name of a specialised device function; statics in parameter order.
 *
 * @example
 * emittedName('quantizeSymmetric', [4]); // 'quantize_symmetric_4'
 */
export function emittedName(name: string, statics: readonly number[]): string {
  const printed = [snakeCase(name), ...statics.map((value) => String(value).replace('-', 'm'))].join('_');
  return reserved.has(printed) || cudaFunctions.has(printed) ? `${printed}_` : printed;
}
