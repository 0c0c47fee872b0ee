import { bytePlanes, fromBytePlanes, inflated } from './entropy.js';
import { type ArchiveHeader, codedTokens, type ParsedArchive, refused } from './format.js';
import type { ArchiveInput } from './pack.js';
import { allFinite } from './rows.js';
import type { UnpackedLayer } from './unpack.js';

/** Sinks and window of every layer and KV head: keys as they were given, then values. */
export function exactTokens(input: ArchiveInput, base: ArchiveHeader): Uint8Array {
  const { tokens, sinks } = base;
  const { kvHeads, headDim } = input.model;
  const coded = codedTokens(base);
  const pieces = input.layers.flatMap(({ keys, values }) =>
    [keys, values].flatMap((bits) =>
      Array.from({ length: kvHeads }, (_, head) =>
        bits.subarray(head * tokens * headDim, (head + 1) * tokens * headDim),
      ).flatMap((own) =>
        coded === 0 ? [own] : [own.subarray(0, sinks * headDim), own.subarray((sinks + coded) * headDim)],
      ),
    ),
  );
  const whole = new Uint16Array(pieces.reduce((sum, { length }) => sum + length, 0));
  let end = 0;
  for (const piece of pieces) {
    whole.set(piece, end);
    end += piece.length;
  }
  return bytePlanes(whole);
}

/** f16 bits of sinks and window, in the order of `writeExact`. */
export function exactBits({ header, sections }: ParsedArchive): Uint16Array {
  const { kvHeads, headDim } = header.model;
  const numbers = header.layers.length * 2 * kvHeads * (header.tokens - codedTokens(header)) * headDim;
  const bits = fromBytePlanes(inflated(sections.get('exact')!, 2 * numbers, 'section exact'));
  if (!allFinite(bits)) {
    throw refused('section exact', 'finite numbers', 'one that is not', 'Pack the cache again.');
  }
  return bits;
}

/** Takes back `exactTokens`. */
export function writeExact(header: ArchiveHeader, bits: Uint16Array, layers: readonly UnpackedLayer[]): void {
  const { tokens, sinks, model } = header;
  const { kvHeads, headDim } = model;
  const coded = codedTokens(header);
  let end = 0;
  const take = (to: Uint16Array) => {
    to.set(bits.subarray(end, end + to.length));
    end += to.length;
  };
  for (const { keys, values } of layers) {
    for (const whole of [keys, values]) {
      for (let head = 0; head < kvHeads; head++) {
        const own = whole.subarray(head * tokens * headDim, (head + 1) * tokens * headDim);
        if (coded === 0) take(own);
        else {
          take(own.subarray(0, sinks * headDim));
          take(own.subarray((sinks + coded) * headDim));
        }
      }
    }
  }
}
