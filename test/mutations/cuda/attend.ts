import { driveAttend } from '../drivers/attend.js';
import type { Suspect } from '../mutant.js';
import { changed, without } from './text.js';

/** Float32 on CUDA cores. */
export const attendSuspects: readonly Suspect[] = [
  {
    stage: 'attend',
    entry: 'attend',
    drive: driveAttend(1e-5),
    mutants: [
      without('every thread has read what was in the tile'),
      without('codes and scales of the group are staged'),
      without('every thread has read the last group: keys take its place'),
      without('query and keys of the tile are complete'),
      without('every slice of every score is summed'),
      without('scores are complete'),
      without('all know how many blocks of the row are done'),
      changed(
        'a count without a fence',
        "__threadfence();  // this thread's part",
        "// this thread's part",
        'block race',
      ),
      changed('counters not reset', 'if (thread == 0) counters[row] = 0;', ''),
      changed(
        'merged one block early',
        'if (finished < own.splits) return;',
        'if (finished + 1 < own.splits) return;',
        'unwritten',
      ),
      changed('every block merges', 'if (finished < own.splits) return;', '', 'unwritten'),
      changed('old sums not rescaled', 'float sum = accumulated[h] * shrink;', 'float sum = accumulated[h];'),
      changed('a maximum of zero to start from', 'maxima[h] = MASKED;', 'maxima[h] = 1e4f;'),
      changed(
        'tokens past the end weighed',
        'token + k < count ? score_exponent(score * SCORE_SCALE) : MASKED',
        'score_exponent(score * SCORE_SCALE)',
      ),
      changed('angles past the tables', 'min(first + q * 4 + k, last - 1)', 'first + q * 4 + k', 'outside'),
      changed('window not as a ring', '(ring_start + token) % WINDOW', 'token'),
      changed(
        'codebook read one entry on',
        'entry * CHANNELS + channel % CHANNELS',
        'entry * CHANNELS + channel % CHANNELS + 1',
      ),
      changed(
        'position without the sinks',
        'angle_at(tables, sinks_end + token, pair)',
        'angle_at(tables, token, pair)',
      ),
      changed(
        'a sliding window one token too long',
        'visible_end - min(sliding, visible_end)',
        'visible_end - min(sliding + 1, visible_end)',
      ),
      changed('tokens after the query seen', 'tokens - min(own.after, tokens)', 'tokens'),
    ],
  },
  {
    stage: 'attend, allocated widths',
    entry: 'attend',
    shape: 'full',
    drive: driveAttend(1e-5),
    mutants: [
      changed('the cap forgotten', 'SCORE_CAP * tanhf(scaled)', 'SCORE_CAP * scaled'),
      changed(
        'tokens past the end capped too',
        'token + k < count ? score_exponent(score * SCORE_SCALE) : MASKED',
        'score_exponent(token + k < count ? score * SCORE_SCALE : MASKED)',
      ),
      changed('the weight not divided out', 'first_inverse = 1.0f / half_at', 'first_inverse = half_at'),
      changed('widths of the wrong group', '[record[AT_KEY_WIDTHS] + group];', '[record[AT_KEY_WIDTHS]];', 'shift'),
      changed('wrong first bit', 'width / 16 + i * bits', 'i * bits'),
      changed('half a step forgotten', '(1 << (bits - 1u))) + 0.5f', '(1 << (bits - 1u)))'),
      changed("a straddling field's second word ignored", 'if (shift + bits > 32u)', 'if (false)'),
      changed('the query of another row', 'query + (own.row * HEADS', 'query + (own.sequence * HEADS'),
      changed(
        'pairs of the other pairing',
        'first_of_pair_4_8_1(pair);\n  const u32 second_channel = second_of_pair_4_8_1(pair);',
        'pair;\n  const u32 second_channel = pair + PAIRS;',
      ),
    ],
  },
];

/** Tensor cores: half operands, split in two where float32 needs it. */
export const tensorSuspects: readonly Suspect[] = [
  {
    stage: 'attend, tensor cores',
    entry: 'attend',
    shape: 'full',
    drive: driveAttend(2e-3),
    mutants: [
      without('query, basis and codebook are in place'),
      without('scratch is read before the basis takes its place'),
      without('the basis, whose place this takes, is no longer read'),
      without('all warps have stored'),
      without('the decision is shared'),
      without('the decision is read before scratch takes its place'),
      changed(
        'no __syncwarp: copies have landed',
        "__syncwarp();  // every lane's copies",
        "// every lane's copies",
        'race or unwritten',
      ),
      changed(
        'no __syncwarp: the stage is read to the end',
        '__syncwarp();  // this stage is read',
        '// this stage is read',
        'race or unwritten',
      ),
      changed('no wait for the copies', 'cp_async_wait<1>();', '', 'unwritten'),
      changed('a wait for one group too few', 'cp_async_wait<1>();', 'cp_async_wait<2>();', 'unwritten'),
      changed(
        'the other stage read',
        '= stages + stage * STAGE_WORDS;\n    const u8*',
        '= stages + (stage ^ 1u) * STAGE_WORDS;\n    const u8*',
        'unwritten',
      ),
      changed(
        'the stage in use copied over',
        'fetch(tile + WARPS, stage ^ 1u)',
        'fetch(tile + WARPS, stage)',
        'unwritten',
      ),
      changed('stale bits in rows past the end', 'keys[word] = 0u;', ';', 'unwritten'),
      changed('a count without a fence', '__threadfence();\n  __syncthreads();', '__syncthreads();', 'block race'),
      changed('counters not reset', 'if (finished == own.splits - 1) *counter = 0u;', ''),
      changed(
        'merged one block early',
        'finished == own.splits - 1 ? 1u : 0u',
        'finished + 2 == own.splits ? 1u : 0u',
        'unwritten',
      ),
      changed('wrong fragment column', 'column + i % 2 + i / 2 * 8;', 'column / 2 + i % 2 * 4 + i / 2 * 8;'),
      changed(
        'wrong fragment columns of the query',
        'step * 16 + lane_id() / 16 * 8) * 2);',
        'step * 16 + lane_id() / 8 % 2 * 8) * 2);',
      ),
      changed('wrong fragment rows of the basis', 'tiles[0][1] = loaded[1];', 'tiles[0][1] = loaded[2];'),
      changed(
        'tokens 0 to 7 twice',
        'mma_m16n8k16(scores[1], fragment, keys[1]);',
        'mma_m16n8k16(scores[1], fragment, keys[0]);',
      ),
      changed('low halves twice', '__byte_perm(pairs[0], pairs[1], 0x7632)', '__byte_perm(pairs[0], pairs[1], 0x5410)'),
      changed('old sums not rescaled', 'exp2f(state.largest[half] - largest[half])', '1.0f'),
      changed(
        'a maximum over half of the tokens',
        'largest[half] = fmaxf(largest[half], __shfl_xor_sync(0xffffffffu, largest[half], 2));',
        '',
      ),
      changed(
        'tokens past the end weighed',
        'const bool seen = (valid >> (tokens * 8 + column + i % 2)) & 1u;',
        'const bool seen = true;',
      ),
      changed('a power of two not taken out', '* power_of_two(254 - exponent);', ';'),
      changed(
        'angles past the tables',
        'min(position + row + k / 2 * 8, last_position)',
        'position + row + k / 2 * 8',
        'outside',
      ),
      changed(
        'maxima of another head',
        'half_at(channel_max, kv_head * HEAD_DIM + channel)',
        'half_at(channel_max, channel)',
      ),
      changed('window not as a ring', '(oldest + token) % WINDOW', 'token'),
      changed(
        'tokens past the end capped too',
        'seen ? score_exponent(scores[tokens][i] * scale) : MASKED',
        'score_exponent(seen ? scores[tokens][i] * scale : MASKED)',
      ),
      changed(
        'the weight not divided out',
        'inverse_weights[place] = 1.0f / half_at',
        'inverse_weights[place] = half_at',
      ),
      changed('one weight for both channels of a pair', 'inverse_weights[place + 8]', 'inverse_weights[place]'),
      changed('widths of the wrong group', '= widths[group] % 16;', '= widths[0] % 16;'),
      changed('wrong first bit', 'widths[group] / 16 + first * bits', 'first * bits'),
      changed('half a step forgotten', '(1 << (bits - 1u))) + 0.5f', '(1 << (bits - 1u)))'),
      changed("a straddling field's second word ignored", 'if (shift + bits > 32u)', 'if (false)'),
      changed('the query of another row', 'query + (own.row * HEADS', 'query + (own.sequence * HEADS'),
      changed('basis rows in the order of channels', 'rows[channel_at(place) * RANK_WORDS', 'rows[place * RANK_WORDS'),
      changed(
        'the query in the order of channels',
        'half_at(rows, head * HEAD_DIM + channel_at(place))',
        'half_at(rows, head * HEAD_DIM + place)',
      ),
    ],
  },
];
