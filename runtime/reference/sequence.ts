import { decodeScalar, type ScalarParts } from './scalar.js';
import type { Cache } from './shapes.js';
import { decodeShard, type ShardParts } from './shard.js';
import { decodeTilt, type TiltParts } from './tilt.js';

/** One sequence's cache in one layer, with codes of any family. */
export type CodedSequence = ShardParts | ScalarParts | TiltParts;

export function isScalarParts(parts: CodedSequence): parts is ScalarParts {
  return 'keys' in parts.middle;
}

export function isTiltParts(parts: CodedSequence): parts is TiltParts {
  return 'tiltValues' in parts.middle;
}

/** The cache that a coded sequence stands for. */
export function decodeSequence(parts: CodedSequence): Cache {
  if (isTiltParts(parts)) return decodeTilt(parts);
  return isScalarParts(parts) ? decodeScalar(parts) : decodeShard(parts);
}
