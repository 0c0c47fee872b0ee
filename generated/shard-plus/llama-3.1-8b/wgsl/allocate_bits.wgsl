// allocate_bits: Exact dynamic programming over the budget in units of 16 bits, a thread a unit; one block.
// Stage allocate of scheme shard-plus for llama-3.1-8b. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 192, 768 bits a token, group 16, i8 basis, weighted by queries)
// values: hadamard, channelMax, vq(4 channels, 256 entries, unbiased)
// stream: lloydMax(8 bits); sinks 4, window 64

const ALLOCATED_GROUPS = 12u;  // groups of 16 components with widths of their own
const AT_KEY_WIDTHS = 26u;  // in the record, first word of keyWidths: u32 [12 groups of 16 components]: first bit in the row * 16 + bits a component
const THREADS = 64u;  // threads of a block
const UNITS = 48u;  // units of 16 bits in the budget of a token
const WIDTH_CHOICES = 8u;  // widths that a group of components may have

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// [192] eigenvalues: the variances of the components
@group(0) @binding(1) var<storage, read> values: array<f32>;
// [12 groups][49], scratch: the width that a group gets
@group(0) @binding(2) var<storage, read_write> choices: array<u32>;
// all compressed parts of all sequences; offsets come from the record
@group(0) @binding(3) var<storage, read_write> cache: array<u32>;

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

// best[u]: least error of the groups so far that spends at most u units of 16 bits, without the group at hand and with
// it, in turns.
var<workgroup> best: array<f32, 2u * (UNITS + 1u)>;
var<workgroup> widths: array<u32, ALLOCATED_GROUPS>;

// Variance of a group. Rounding leaves eigenvalues of a singular matrix a little below zero.
fn variance_of(group: u32) -> f32 {
  var sum = 0.0;
  for (var i = 0u; i < 16u; i++) {
    sum += max(values[group * 16u + i], 0.0);
  }
  return sum;
}

// One block. A group takes the fewest bits among equals, so that of two tables with the same error the one found gives
// later groups less.
@compute @workgroup_size(64)
fn allocate_bits(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  // Errors count in units of the largest group's variance: small keys need no small floats. Eigenvalues descend.
  let unit = variance_of(0u);
  var inverse = 0.0;
  if (unit > 0.0) {
    inverse = 1.0 / unit;
  }
  for (var spent = thread; spent <= UNITS; spent += THREADS) {
    best[spent] = 0.0;
  }
  for (var group = 0u; group < ALLOCATED_GROUPS; group++) {
    // The group before is complete.
    workgroupBarrier();
    let before = (group % 2u) * (UNITS + 1u);
    let after = ((group + 1u) % 2u) * (UNITS + 1u);
    let variance = variance_of(group) * inverse;
    for (var spent = thread; spent <= UNITS; spent += THREADS) {
      var least = best[before + spent] + variance;
      var chosen = 0u;
      for (var choice = 1u; choice < WIDTH_CHOICES; choice++) {
        let bits = mid_rise_width(choice);
        if (bits > spent) {
          break;
        }
        let error = best[before + spent - bits] + variance * mid_rise_distortion(bits);
        if (error < least) {
          least = error;
          chosen = bits;
        }
      }
      best[after + spent] = least;
      choices[group * (UNITS + 1u) + spent] = chosen;
    }
  }
  // All choices are known.
  storageBarrier();
  if (thread > 0u) {
    return;
  }
  // Two short walks by one thread: from the last group back, as each choice depends on what later groups spent, and on
  // again, as each place depends on what earlier ones take.
  var left = UNITS;
  for (var later = 0u; later < ALLOCATED_GROUPS; later++) {
    let group = ALLOCATED_GROUPS - 1u - later;
    widths[group] = choices[group * (UNITS + 1u) + left];
    left -= widths[group];
  }
  var first = 0u;
  for (var group = 0u; group < ALLOCATED_GROUPS; group++) {
    cache[sequence[AT_KEY_WIDTHS] + group] = first * 16u + widths[group];
    first += widths[group] * 16u;
  }
}
