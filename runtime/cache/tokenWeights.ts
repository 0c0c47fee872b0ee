import { massCallWords } from '../../dsl/stages/mass.js';
import { checkHalf } from '../halfBits.js';
import { checkWhole } from './checkInput.js';
import { totalTokens } from './lengths.js';
import type { CacheMemory } from './memory.js';
import { decodeLaunch } from './read.js';
import { scoped } from './scoped.js';

export interface TokenWeightsOptions {
  /** Query tokens: the last ones that the sequence holds, each seeing what is not after it; 1 if left out. */
  readonly queries?: number;
}

/** What query tokens make of the tokens that a sequence holds. */
export interface TokenWeights {
  /** Sums of softmax weights, float32 [KV heads][tokens]: over query tokens, and over the query heads of a KV head. */
  readonly weights: Float32Array;
  /** Tokens that the sequence holds, in the order sinks, middle, stream, window. */
  readonly tokens: number;
}

/** Most scores that lie on the device at once: 64 MB, and what a CPU takes well within the time-out of a run. */
const mostScores = 2 ** 24;

/** The softmax weights that query tokens give to every token of a sequence. */
export async function tokenWeights(
  memory: CacheMemory,
  sequence: number,
  query: Uint16Array,
  { queries = 1 }: TokenWeightsOptions,
): Promise<TokenWeights> {
  const { geometry: g, device, kernels, capacity } = memory;
  checkWhole(queries, { at: 'queries', least: 1, most: 65535, hint: 'Leave it out for one query token.' });
  checkHalf(query, {
    name: `query, layer ${capacity.layer}`,
    dimensions: [
      { name: 'query token', size: queries },
      { name: 'head', size: g.heads },
      { name: 'channel', size: g.headDim },
    ],
  });
  const tokens = totalTokens(await memory.readRecord(sequence));
  const weights = new Float32Array(g.kvHeads * tokens);
  if (tokens === 0) return { weights, tokens };
  return scoped(async (owned) => {
    const allocate = (label: string, words: number) => {
      const buffer = device.allocate(label, words * 4);
      owned.push(buffer);
      return { buffer };
    };
    const { sequence: record } = memory.bindingsOf(sequence);
    const decoded = decodeLaunch(memory, sequence, tokens, owned);
    await device.run([decoded.launch]);
    const most = Math.min(queries, Math.max(1, Math.floor(mostScores / (g.heads * tokens))));
    const rowHalves = g.heads * g.headDim;
    const rows = allocate('query', (most * rowHalves) / 2);
    const scores = allocate('scores', most * g.heads * tokens);
    const masses = allocate('masses', weights.length);
    const call = allocate('call', massCallWords);
    // In double precision, so that many thousands of queries add up to what they are.
    const sums = new Float64Array(weights.length);
    for (let first = 0; first < queries; first += most) {
      const end = Math.min(queries, first + most);
      device.write(rows.buffer, query.subarray(first * rowHalves, end * rowHalves));
      device.write(call.buffer, Uint32Array.of(end - first, queries - end));
      await device.run([
        kernels.launch(
          'mass_scores',
          { tokens },
          { sequence: record, call, keys: { buffer: decoded.keys }, query: rows, scores },
        ),
        kernels.launch('mass_tokens', {}, { sequence: record, call, scores, masses }),
      ]);
      const bytes = await device.read(masses.buffer);
      new Float32Array(bytes.buffer, bytes.byteOffset, sums.length).forEach((mass, at) => {
        sums[at]! += mass;
      });
    }
    weights.set(sums);
    return { weights, tokens };
  });
}
