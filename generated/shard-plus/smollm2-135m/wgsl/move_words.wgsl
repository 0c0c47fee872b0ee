// move_words: One tile of one move a block, from one buffer to another.
// Stage copy of scheme shard-plus for smollm2-135m. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 32, 128 bits a token, group 16, i8 basis, weighted by queries)
// values: hadamard, channelMax, vq(4 channels, 256 entries, unbiased)
// stream: lloydMax(8 bits); sinks 4, window 64

const THREADS = 256u;  // threads of a block
const TILE_WORDS = 1024u;  // words that a block copies
const MOVE_WORDS = 3u;  // words that describe one move

// [moves][from word, to word, words]
@group(0) @binding(0) var<storage, read> moves: array<u32>;
// the cache, or scratch
@group(0) @binding(1) var<storage, read> origin: array<u32>;
// scratch, or the cache
@group(0) @binding(2) var<storage, read_write> destination: array<u32>;

// One block a tile of a move. What is read is another buffer than what is written, so moves may come in any order.
@compute @workgroup_size(256)
fn move_words(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let row = block.y * MOVE_WORDS;
  let start = moves[row];
  let place = moves[row + 1u];
  let first = block.x * TILE_WORDS;
  let end = min(first + TILE_WORDS, moves[row + 2u]);
  for (var word = first + thread; word < end; word += THREADS) {
    destination[place + word] = origin[start + word];
  }
}
