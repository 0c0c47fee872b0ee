// tilt_allocate: Shares the nibbles of a row out among the KV heads for the least error together, and places fields; one block.
// Stage fit of scheme tilt-fast for llama-3.1-8b. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, tileRotation(64), transformCode(1.5 bits a channel, 16 components a width, steps of 512 positions, i8 basis)
// values: hadamard, perToken(uniformNormal, 2 bits; a scale for a head), gain
// stream: lloydMax(8 bits); sinks 4, window 64

const KV_HEADS = 8u;  // KV heads
const GROUP_COMPONENTS = 16u;  // components that share a width
const GROUPS = 8u;  // groups of components of a KV head
const FIELD_WORDS = 10u;  // words that describe the fields of a KV head's key codes
const ROW_VALUE_WORDS = 544u;  // words of a KV head's value codes and norms in a row
const KEY_NIBBLES = 24u;  // nibbles of a group that a row has for all KV heads
const AT_KEY_FIELDS = 45u;  // in the record, first word of keyFields: u32 [8 KV heads][8 groups, nibbles, first word]: bits + 16 * bit + 65536 * slot
const THREADS = 64u;  // threads of a block
const WIDTH_CHOICES = 8u;  // widths that a group of components may have

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// [8 KV heads][17 numbers of nibbles]
@group(0) @binding(1) var<storage, read> head_errors: array<f32>;
// [8 KV heads][17 numbers of nibbles]
@group(0) @binding(2) var<storage, read> head_candidates: array<u32>;
// [8 KV heads][25], scratch: the nibbles that a head gets of so many
@group(0) @binding(3) var<storage, read_write> choices: array<u32>;
// all compressed parts of all sequences; offsets come from the record
@group(0) @binding(4) var<storage, read_write> cache: array<u32>;

// dsl/codecs/midRise.ts:41 midRiseWidth
// The widths that bits are allocated from, as `choice` goes from 0 to 7: every one to 6 bits, then 8.
fn mid_rise_width(choice: u32) -> u32 {
  return select(8u, choice, choice < 7u);
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

// best[n]: least error of the heads so far in n nibbles or fewer, without the head at hand and with it, in turns.
var<workgroup> best: array<f32, 2u * (KEY_NIBBLES + 1u)>;
var<workgroup> taken: array<u32, KV_HEADS>;  // nibbles of every head

// One block.
@compute @workgroup_size(64)
fn tilt_allocate(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  for (var room = thread; room <= KEY_NIBBLES; room += THREADS) {
    best[room] = 0.0;
  }
  for (var head = 0u; head < KV_HEADS; head++) {
    workgroupBarrier();  // the head before is complete
    let before = (head % 2u) * (KEY_NIBBLES + 1u);
    let after = ((head + 1u) % 2u) * (KEY_NIBBLES + 1u);
    for (var room = thread; room <= KEY_NIBBLES; room += THREADS) {
      var least = NONE;
      var chosen = 0u;
      for (var nibbles = 0u; nibbles <= min(room, MOST_NIBBLES); nibbles++) {
        let own = head_errors[head * (MOST_NIBBLES + 1u) + nibbles];
        if (own < NONE && best[before + room - nibbles] + own < least) {
          least = best[before + room - nibbles] + own;
          chosen = nibbles;
        }
      }
      best[after + room] = least;
      choices[head * (KEY_NIBBLES + 1u) + room] = chosen;
    }
  }
  // All choices are known.
  storageBarrier();
  if (thread == 0u) {
    // One thread, from the last head back: each choice depends on what later heads took.
    var room = KEY_NIBBLES;
    for (var later = 0u; later < KV_HEADS; later++) {
      let head = KV_HEADS - 1u - later;
      taken[head] = choices[head * (KEY_NIBBLES + 1u) + room];
      room -= taken[head];
    }
  }
  workgroupBarrier();  // every head's nibbles are known

  // Where the fields lie, for every reader; a head a thread.
  for (var head = thread; head < KV_HEADS; head += THREADS) {
    find_widths(head_candidates[head * (MOST_NIBBLES + 1u) + taken[head]]);
    place_fields();
    let fields = sequence[AT_KEY_FIELDS] + head * FIELD_WORDS;
    for (var group = 0u; group < GROUPS; group++) {
      var slot = 0u;  // groups of the head whose fields come before
      for (var other = 0u; other < GROUPS; other++) {
        let earlier = head_widths[other] > 0u && bits_at[other] < bits_at[group];
        slot += select(0u, 1u, head_widths[group] > 0u && earlier);
      }
      cache[fields + group] = head_widths[group] + 16u * bits_at[group] + 65536u * slot;
    }
    cache[fields + GROUPS] = taken[head];
    var first = 0u;
    for (var before = 0u; before < head; before++) {
      first += taken[before] * 8u * GROUP_COMPONENTS + ROW_VALUE_WORDS;
    }
    cache[fields + GROUPS + 1u] = first;
  }
}
