// copy_words: One tile of one move a block; no range that is written overlaps another range.
// Stage copy of scheme tilt-safe for smollm2-135m. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, tileRotation(64), transformCode(2 bits a channel, 8 components a width, steps of 512 positions, i8 basis)
// values: hadamard, perToken(asymmetric, 3 bits; a scale for a head)
// stream: lloydMax(8 bits); sinks 4, window 64

const THREADS = 256u;  // threads of a block
const TILE_WORDS = 1024u;  // words that a block copies
const MOVE_WORDS = 3u;  // words that describe one move

// [moves][from word, to word, words]
@group(0) @binding(0) var<storage, read> moves: array<u32>;
// all compressed parts of all sequences; the moves say what of it is copied
@group(0) @binding(1) var<storage, read_write> cache: array<u32>;

// One block a tile of a move; the grid is as wide as the longest move, so that tiles past the end of a shorter one are empty.
@compute @workgroup_size(256)
fn copy_words(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let row = block.y * MOVE_WORDS;
  let source = moves[row];
  let place = moves[row + 1u];
  let first = block.x * TILE_WORDS;
  let end = min(first + TILE_WORDS, moves[row + 2u]);
  for (var word = first + thread; word < end; word += THREADS) {
    cache[place + word] = cache[source + word];
  }
}
