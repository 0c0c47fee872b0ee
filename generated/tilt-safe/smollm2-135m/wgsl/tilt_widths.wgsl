// tilt_widths: Least expected error of every KV head for every number of nibbles, by trying all widths; a head a block.
// Stage fit of scheme tilt-safe for smollm2-135m. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, tileRotation(64), transformCode(2 bits a channel, 8 components a width, steps of 512 positions, i8 basis)
// values: hadamard, perToken(asymmetric, 3 bits; a scale for a head)
// stream: lloydMax(8 bits); sinks 4, window 64

const KV_HEADS = 3u;  // KV heads
const GROUP_COMPONENTS = 8u;  // components that share a width
const GROUPS = 8u;  // groups of components of a KV head
const THREADS = 64u;  // threads of a block
const WIDTH_CHOICES = 8u;  // widths that a group of components may have
const CANDIDATES = 6435u;  // lists of widths of a KV head that are tried

// [3 KV heads][64] eigenvalues: the variances of the components
@group(0) @binding(0) var<storage, read> values: array<f32>;
// [3 KV heads][17 numbers of nibbles], over the largest variance of a group
@group(0) @binding(1) var<storage, read_write> head_errors: array<f32>;
// [3 KV heads][17 numbers of nibbles]: the number of the widths that leave it
@group(0) @binding(2) var<storage, read_write> head_candidates: array<u32>;

// dsl/codecs/midRise.ts:41 midRiseWidth
// The widths that bits are allocated from, as `choice` goes from 0 to 7: every one to 6 bits, then 8.
fn mid_rise_width(choice: u32) -> u32 {
  return select(8u, choice, choice < 7u);
}

// dsl/codecs/midRise.ts:52 midRiseDistortion
// The share of a component's variance that is left as error at a width, for normal coefficients; 7 bits are never given.
fn mid_rise_distortion(bits: u32) -> f32 {
  var left: f32 = 1.0;
  if (bits == 1u) {
    left = 0.3633802;
  } else if (bits > 1u) {
    let step: f32 = 7.4 / f32(1u << bits);
    left = step * step / 12.0;
  }
  return left;
}

var<private> head_widths: array<u32, GROUPS>;  // of the candidate at hand
var<private> bits_at: array<u32, GROUPS>;      // where its fields lie

// Places the fields of `head_widths`, every one in the first plane with room, in the order of groups, whose widths do not
// ascend; the last plane of 4 bits or fewer is a nibble plane. Nibbles of the planes.
fn place_fields() -> u32 {
  var used = array<u32, GROUPS>();  // bits of every plane
  var planes = 0u;
  for (var group = 0u; group < GROUPS; group++) {
    let bits = head_widths[group];
    bits_at[group] = 0u;
    if (bits == 0u) {
      continue;
    }
    var plane = 0u;
    while (plane < planes && used[plane] + bits > 8u) {
      plane++;
    }
    planes = max(planes, plane + 1u);
    bits_at[group] = plane * 8u + used[plane];
    used[plane] += bits;
  }
  if (planes == 0u) {
    return 0u;
  }
  return planes * 2u - select(0u, 1u, used[planes - 1u] <= 4u);
}

// Lists of `groups` widths that do not ascend, from so many choices: binomial(groups + choices - 1, groups).
fn lists_of(groups: u32, choices: u32) -> u32 {
  var count = 1u;
  for (var i = 1u; i <= groups; i++) {
    count = count * (choices - 1u + i) / i;
  }
  return count;
}

// Puts the widths of a candidate into `head_widths`. All lists that do not ascend are numbered from the widest on.
fn find_widths(candidate: u32) {
  var rest = candidate;
  var choice = 0u;  // from the widest on
  for (var group = 0u; group < GROUPS; group++) {
    while (choice < WIDTH_CHOICES - 1u) {
      let lists = lists_of(GROUPS - 1u - group, WIDTH_CHOICES - choice);
      if (rest < lists) {
        break;
      }
      rest -= lists;
      choice++;
    }
    head_widths[group] = mid_rise_width(WIDTH_CHOICES - 1u - choice);
  }
}

const MOST_NIBBLES = 2u * GROUPS;
const NONE = 3.0e38;  // more than any error

var<workgroup> errors: array<f32, THREADS * (MOST_NIBBLES + 1u)>;
var<workgroup> found: array<u32, THREADS * (MOST_NIBBLES + 1u)>;

// Variance of a group. Rounding leaves eigenvalues of a singular matrix a little below zero.
fn variance_of(group: u32) -> f32 {
  var variance = 0.0;
  for (var i = 0u; i < GROUP_COMPONENTS; i++) {
    variance += max(values[group * GROUP_COMPONENTS + i], 0.0);
  }
  return variance;
}

// One KV head a block: for every number of nibbles the least expected error of widths whose fields take as many, by trying
// all that do not ascend, as variances descend.
@compute @workgroup_size(64)
fn tilt_widths(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  // Errors count in units of the largest group's variance in the layer: small keys need no small floats.
  var unit = 0.0;
  for (var group = 0u; group < KV_HEADS * GROUPS; group++) {
    unit = max(unit, variance_of(group));
  }
  var inverse = 0.0;
  if (unit > 0.0) {
    inverse = 1.0 / unit;
  }
  var shares = array<f32, GROUPS>();
  for (var group = 0u; group < GROUPS; group++) {
    shares[group] = variance_of(block.x * GROUPS + group) * inverse;
  }
  let own = thread * (MOST_NIBBLES + 1u);
  for (var n = 0u; n <= MOST_NIBBLES; n++) {
    errors[own + n] = NONE;
    found[own + n] = CANDIDATES;
  }
  for (var candidate = thread; candidate < CANDIDATES; candidate += THREADS) {
    find_widths(candidate);
    var error = 0.0;
    for (var group = 0u; group < GROUPS; group++) {
      error += shares[group] * mid_rise_distortion(head_widths[group]);
    }
    let nibbles = place_fields();
    if (error < errors[own + nibbles]) {
      errors[own + nibbles] = error;
      found[own + nibbles] = candidate;
    }
  }
  workgroupBarrier();  // every thread has tried its candidates
  for (var n = thread; n <= MOST_NIBBLES; n += THREADS) {
    var best = n;
    for (var i = 1u; i < THREADS; i++) {
      let other = i * (MOST_NIBBLES + 1u) + n;
      if (errors[other] < errors[best]) {
        best = other;
      }
    }
    head_errors[block.x * (MOST_NIBBLES + 1u) + n] = errors[best];
    head_candidates[block.x * (MOST_NIBBLES + 1u) + n] = found[best];
  }
}
