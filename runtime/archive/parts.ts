import type { Matrix } from '../reference/shapes.js';
import type { GroupChoice, PartChoices } from './allocate.js';
import { fitBasis, orthonormal, project, type StoredBasis, sampleRows } from './basis.js';
import { choicesOf } from './choices.js';
import { deflated, joinSymbols } from './entropy.js';
import { type ArchiveHeader, codedTokens } from './format.js';
import { rotationOf } from './identity.js';
import type { ArchiveInput } from './pack.js';
import { codeGroup } from './quantize.js';
import { numbersOf, rowsOf, sideBySide, type Tokens } from './rows.js';

/** Rows that rates and errors are estimated from, at most. */
const estimatedRows = 512;
/** Bits of an entry of a basis after entropy coding, about. */
const entryBits = 6.5;

/** Channels that one basis is for, and what they are coded from. */
export interface Part {
  readonly operand: 'keys' | 'values';
  /** Places in the list of layers. */
  readonly layers: readonly number[];
  readonly basis: StoredBasis;
  /** [components][coded tokens] */
  readonly coefficients: Matrix;
  /** Squares of the coded tokens, as they are and about the mean. */
  readonly energy: number;
  readonly spread: number;
  readonly choices: PartChoices;
  /** Groups that were coded before: the search for the budget asks for most of them again. */
  readonly coded: Map<string, CodedBytes>;
}

export interface CodedBytes {
  readonly exponent: number;
  readonly scales: Uint8Array;
  readonly codes: Uint8Array;
  readonly error: number;
}

export const squaresOf = (numbers: Float64Array) => numbers.reduce((sum, x) => sum + x * x, 0);

/** Keys and values of so many layers at a time, with what coding them could cost and lose. */
export function partsOf(
  input: ArchiveInput,
  base: ArchiveHeader,
  jointLayers: number,
  shared: readonly StoredBasis[] | undefined,
): readonly Part[] {
  const places = input.layers.map((_, place) => place);
  const together = places
    .filter((place) => place % jointLayers === 0)
    .map((place) => places.slice(place, place + jointLayers));
  const listed = together.flatMap((layers) => (['keys', 'values'] as const).map((operand) => ({ operand, layers })));
  const tokens = codedTokens(base);
  return listed.map(({ operand, layers }, index): Part => {
    const rows = sideBySide(
      layers.map((place) => {
        const rope = operand === 'keys' ? rotationOf(base, place) : undefined;
        return rowsOf(tokensOf(input, input.layers[place]![operand]), base.sinks, tokens, rope);
      }),
    );
    const basis = shared?.[index] ?? (tokens === 0 ? emptyBasis(rows.columns) : fitBasis(rows));
    const [mean, vectors] = [numbersOf(basis.mean), orthonormal(basis)];
    const coefficients = project(rows, mean, vectors);
    const spread = rows.data.reduce((sum, x, i) => sum + (x - mean[i % rows.columns]!) ** 2, 0);
    const choices = choicesOf(project(sampleRows(rows, estimatedRows), mean, vectors), {
      // Keys and values of every layer count alike: what of their variation is lost.
      weight: spread > 0 ? tokens / spread : 0,
      tokens,
      componentBits: shared ? 0 : rows.columns * entryBits,
    });
    return { operand, layers, basis, coefficients, energy: squaresOf(rows.data), spread, choices, coded: new Map() };
  });
}

function emptyBasis(width: number): StoredBasis {
  return { width, rank: 0, mean: new Uint16Array(width), codes: new Int8Array(0) };
}

function tokensOf({ model, tokens }: ArchiveInput, bits: Uint16Array): Tokens {
  return { bits, tokens, kvHeads: model.kvHeads, headDim: model.headDim };
}

/** Scales and codes of a group as they are in the file. */
export function codedBytes(part: Part, group: GroupChoice): CodedBytes {
  const key = `${group.start} ${group.components} ${group.bits}`;
  const before = part.coded.get(key);
  if (before) return before;
  const { coded, error } = codeGroup(part.coefficients, group);
  const codes = deflated(joinSymbols(coded.codes, group.bits));
  const bytes = { exponent: coded.exponent, scales: deflated(coded.scales), codes, error };
  part.coded.set(key, bytes);
  return bytes;
}

/** The mean as it is, and the directions of the components that are coded. */
export function basisBytes({ mean, codes, width }: StoredBasis, rank: number): Uint8Array {
  const directions = codes.subarray(0, rank * width);
  const own = new Uint8Array(mean.buffer, mean.byteOffset, mean.byteLength);
  return joined([own, deflated(new Uint8Array(directions.buffer, directions.byteOffset, directions.byteLength))]);
}

/** One piece after the other. */
export function joined(pieces: readonly Uint8Array[]): Uint8Array {
  const whole = new Uint8Array(pieces.reduce((sum, { length }) => sum + length, 0));
  let end = 0;
  for (const piece of pieces) {
    whole.set(piece, end);
    end += piece.length;
  }
  return whole;
}
