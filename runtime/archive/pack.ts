import { KvforgeError } from '../../dsl/errors.js';
import { layerShape, type ModelShape } from '../../dsl/model.js';
import { checkObject, checkWhole, shown } from '../cache/checkInput.js';
import { checkHalf } from '../halfBits.js';
import { bitAllocator, type GroupChoice } from './allocate.js';
import { deflated } from './entropy.js';
import { exactTokens } from './exact.js';
import {
  type ArchivedGroup,
  type ArchiveHeader,
  checkBytes,
  codedTokens,
  formatArchive,
  parseArchive,
  sectionName,
} from './format.js';
import { checkModel, identityOf } from './identity.js';
import { basisBytes, codedBytes, joined, type Part, partsOf, squaresOf } from './parts.js';
import { basesOf } from './unpack.js';

/** Keys and values of one layer. */
export interface ArchiveLayer {
  /** Of the model, from 0. */
  readonly layer: number;
  /** f16 bits [KV heads][tokens][head dim], after RoPE at positions 0 to tokens - 1. */
  readonly keys: Uint16Array;
  /** f16 bits [KV heads][tokens][head dim]. */
  readonly values: Uint16Array;
}

/** The cache of one sequence: as many tokens in every layer. */
export interface ArchiveInput {
  readonly model: ModelShape;
  readonly tokens: number;
  /** Ascending. */
  readonly layers: readonly ArchiveLayer[];
}

export interface PackOptions {
  /** What the whole file may take: bytes of a token in one layer, keys and values, mean over tokens and layers. */
  readonly bytesPerToken: number;
  /** First tokens that are kept exactly; 4 if left out. */
  readonly sinks?: number;
  /** Last tokens that are kept exactly; 64 if left out. */
  readonly window?: number;
  /** Layers that share a basis: this many that follow one another; 1 if left out. */
  readonly jointLayers?: number;
  /** Another archive of the model and these layers: its bases are used, and this one is read back with it only. */
  readonly basis?: Uint8Array;
}

/** A file that takes so much of its budget is near enough; so are this many tries. */
const nearEnough = 0.997;
const mostRounds = 8;

/**
 * Packs a cache for a disk or another machine, in the manner of KVTC: keys before RoPE and values of all heads together
 * in their principal components, bits of groups of components by dynamic programming, one scale a token and group,
 * DEFLATE. Sinks and window are kept to the bit.
 * Source: Staniszewski and Łańcucki 2025, arXiv 2511.01815.
 *
 * @returns the bytes of a file, within the budget
 * @throws KvforgeError `invalid-input` for a wrong length, a NaN or an infinity; `does-not-fit` for a budget that what is
 * kept exactly exceeds; `wrong-use` for layers that do not ascend, and for a model of latents
 * @example
 * const file = packArchive({ model, tokens: 256, layers: [{ layer: 0, keys, values }] }, { bytesPerToken: 48 });
 * file.length <= 48 * 256; // true
 */
export function packArchive(input: ArchiveInput, options: PackOptions): Uint8Array {
  checkObject(input, 'input', '{ model, tokens, layers }');
  checkObject(options, 'options', '{ bytesPerToken }, and what else is set');
  const { sinks = 4, window = 64, jointLayers = 1 } = options;
  checkInput(input, { ...options, sinks, window, jointLayers });
  const { model, tokens, layers } = input;
  const numbers = layers.map(({ layer }) => layer);
  const identity = identityOf(model, numbers, tokens);
  const base = { ...identity, tokens, sinks, window, parts: [], sections: {} };
  checkBytes(base);
  const shared = options.basis === undefined ? undefined : sharedBasis(options.basis, input, jointLayers);
  const parts = partsOf(input, base, jointLayers, shared?.bases);
  const exact = deflated(exactTokens(input, base));

  const shares = layers.length * Math.max(1, tokens);
  const target = options.bytesPerToken * shares;
  const coded = codedTokens(base);
  // Estimated rates are a little too high at most budgets, so a little more than the budget may fit it.
  const most = coded === 0 ? 0 : (1.1 * 8 * target) / coded;
  const allocate = bitAllocator(
    parts.map(({ choices }) => choices),
    most,
  );
  const header = { ...base, ...(shared ? { basis: shared.digest } : {}) };
  const file = (bits: number) => assembled(header, parts, allocate(bits).groups, exact);
  return withinBudget(file, { bytesPerToken: options.bytesPerToken, shares, base });
}

function assembled(
  header: Omit<ArchiveHeader, 'sections'>,
  parts: readonly Part[],
  groups: readonly (readonly GroupChoice[])[],
  exact: Uint8Array,
): Uint8Array {
  const sections = new Map([['exact', exact]]);
  const described = parts.map((part, index) => {
    const coded = groups[index]!.map((group) => codedBytes(part, group));
    const rank = groups[index]!.reduce((sum, { components }) => sum + components, 0);
    if (header.basis === undefined) sections.set(sectionName(index, 'basis'), basisBytes(part.basis, rank));
    sections.set(sectionName(index, 'codes'), joined(coded.flatMap(({ scales, codes }) => [scales, codes])));
    const kept = squaresOf(part.coefficients.data.subarray(0, rank * part.coefficients.columns));
    const lost = coded.reduce((sum, { error }) => sum + error, 0) + Math.max(0, part.spread - kept);
    return {
      operand: part.operand,
      layers: [...part.layers],
      error: part.energy > 0 ? Number(Math.sqrt(lost / part.energy).toPrecision(6)) : 0,
      groups: groups[index]!.map(({ components, bits }, i): ArchivedGroup => {
        const { exponent, scales, codes } = coded[i]!;
        return [components, bits as ArchivedGroup[1], exponent, scales.length, codes.length];
      }),
    };
  });
  return formatArchive({ ...header, parts: described }, sections);
}

/** The bases of another archive; its layers and how they share bases must be these. */
function sharedBasis(file: Uint8Array, { model, layers }: ArchiveInput, jointLayers: number) {
  const archive = parseArchive(file);
  checkModel(archive.header, model);
  const own = layers.map(({ layer }) => layer).join(', ');
  const theirs = archive.header.layers.map(({ layer }) => layer).join(', ');
  const joint = Math.max(...archive.header.parts.map((part) => part.layers.length));
  const hint = 'Pack the same layers as the archive whose bases are used.';
  if (own !== theirs || joint !== Math.min(jointLayers, layers.length)) {
    throw new KvforgeError('wrong-use', {
      at: 'basis',
      expected: `bases for layers ${own}, ${jointLayers} at a time`,
      received: `those of layers ${theirs}, ${joint} at a time`,
      hint,
    });
  }
  return basesOf(archive);
}

interface Search {
  readonly bytesPerToken: number;
  /** Tokens of all layers. */
  readonly shares: number;
  readonly base: ArchiveHeader;
}

/**
 * The largest file within the budget: rates are estimates, so what a file takes too much, or leaves, is taken from the next
 * one's bits, or given to them.
 */
function withinBudget(file: (bits: number) => Uint8Array, search: Search): Uint8Array {
  const { bytesPerToken, shares, base } = search;
  const target = bytesPerToken * shares;
  const coded = codedTokens(base);
  let best = file(0);
  if (best.length > target) throw tooSmall(best.length, search);
  let [low, high, margin] = [0, Number.POSITIVE_INFINITY, (1 - nearEnough) / 4];
  let bits = ((target - best.length) * 8) / coded;
  for (let round = 0; round < mostRounds && coded > 0; round++) {
    const next = file(bits);
    const left = target - next.length;
    if (left < 0) {
      high = bits;
      // A step to the very budget may end just above it again, and so may the next.
      margin *= 2;
    } else {
      // Once everything has the most bits there are, more of them change nothing.
      if (next.length === best.length) break;
      if (next.length > best.length) best = next;
      if (left <= target * (1 - nearEnough)) break;
      low = bits;
    }
    const wanted = bits + ((left - margin * target) * 8) / coded;
    bits = wanted > low && wanted < high ? wanted : (low + high) / 2;
  }
  return best;
}

function tooSmall(bytes: number, { bytesPerToken, shares, base }: Search): KvforgeError {
  return new KvforgeError('does-not-fit', {
    at: 'bytesPerToken',
    expected: `at least ${Math.ceil(bytes / shares)}, as header, means and ${base.tokens - codedTokens(base)} exact tokens take ${bytes} bytes`,
    received: String(bytesPerToken),
    hint: 'Raise it, or keep fewer tokens exact.',
  });
}

function checkInput(
  { model, tokens, layers }: ArchiveInput,
  { bytesPerToken, sinks, window, jointLayers }: Required<Omit<PackOptions, 'basis'>>,
): void {
  checkObject(model, 'model', 'a model, as modelFrom gives it');
  if (model.latent !== undefined) {
    const received = `${model.name}, whose tokens are latents`;
    const [at, expected, hint] = ['model', 'a model with keys and values', 'Keep its caches with saveCache.'];
    throw new KvforgeError('wrong-use', { at, expected, received, hint });
  }
  const most = 2 ** 24;
  checkWhole(tokens, { at: 'tokens', least: 0, most, hint: 'Give the tokens of one sequence.' });
  checkWhole(sinks, { at: 'sinks', least: 0, most, hint: 'Leave it out for 4.' });
  checkWhole(window, { at: 'window', least: 0, most, hint: 'Leave it out for 64.' });
  checkWhole(jointLayers, { at: 'jointLayers', least: 1, most: 1024, hint: 'Leave it out for 1.' });
  if (!(bytesPerToken > 0) || bytesPerToken === Number.POSITIVE_INFINITY) {
    const [at, expected, hint] = ['bytesPerToken', 'a number above 0', 'f16 takes 4 * model.width.'];
    throw new KvforgeError('wrong-use', { at, expected, received: String(bytesPerToken), hint });
  }
  if (!Array.isArray(layers) || layers.length === 0) {
    const [at, expected, hint] = ['layers', 'at least one layer', 'Give what is to be packed.'];
    throw new KvforgeError('wrong-use', {
      at,
      expected,
      received: Array.isArray(layers) ? 'none' : shown(layers),
      hint,
    });
  }
  for (const [index, { layer, keys, values }] of layers.entries()) {
    layerShape(model, layer);
    if (index > 0 && layer <= layers[index - 1]!.layer) {
      const [expected, hint] = [`a layer after ${layers[index - 1]!.layer}`, 'Give every layer once, in order.'];
      throw new KvforgeError('wrong-use', { at: `layers[${index}].layer`, expected, received: String(layer), hint });
    }
    const dimensions = [
      { name: 'KV head', size: model.kvHeads },
      { name: 'token', size: tokens },
      { name: 'channel', size: model.headDim },
    ];
    checkHalf(keys, { name: `keys, layer ${layer}`, dimensions });
    checkHalf(values, { name: `values, layer ${layer}`, dimensions });
  }
}
