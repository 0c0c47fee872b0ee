import type { Architecture } from './architectures.js';
import { type Config, maxPositionsLimit, type RopeFields, ropeTypes } from './config.js';
import { invalid } from './invalid.js';
import type { RopeScaling, RopeShape } from './scaling.js';

/** What one set of rope parameters of a configuration says; without theta, which may stand elsewhere. */
export interface ReadScaling {
  readonly type: 'default' | RopeScaling['type'];
  readonly attentionFactor: number;
  readonly scaling?: RopeScaling;
}

const check = 'Check the configuration.';

/**
 * The scaling that one set of rope parameters asks for.
 *
 * @param at path of the set, for errors
 * @param rotaryDim channels of a head that are rotated
 * @example
 * readScaling({ rope_type: 'linear', factor: 8 }, 'rope_scaling', config, {}, 128).scaling; // { type: 'linear', factor: 8 }
 */
export function readScaling(
  fields: RopeFields,
  at: string,
  config: Config,
  architecture: Architecture,
  rotaryDim: number,
): ReadScaling {
  const type = typeOf(fields, at, config, architecture);
  if (type === 'default') return { type, attentionFactor: 1 };
  const read = new Fields(fields, at, type, config);
  switch (type) {
    case 'linear':
      return { type, attentionFactor: 1, scaling: { type, factor: read.factor() } };
    case 'dynamic':
      return { type, attentionFactor: 1, scaling: dynamic(read, config, rotaryDim) };
    case 'llama3':
      return { type, attentionFactor: 1, scaling: llama3(read) };
    case 'yarn':
      return { type, attentionFactor: yarnAttentionFactor(fields, read.factor()), scaling: yarn(read, config) };
    case 'longrope':
      return longrope(read, config, rotaryDim);
  }
}

/**
 * Tokens of a sequence, at most. Dynamic scaling begins where `max_position_embeddings` ends, and is meant for as much
 * more as its factor says; the other kinds have their longer context in the configuration.
 *
 * @param rope of the layers with full attention
 */
export function maxPositionsOf(config: Config, { scaling }: RopeShape): number {
  const { max_position_embeddings: positions } = config;
  if (scaling?.type !== 'dynamic') return positions;
  return Math.min(maxPositionsLimit, Math.floor(scaling.factor * scaling.originalMaxPositions));
}

function typeOf(fields: RopeFields, at: string, config: Config, architecture: Architecture): ReadScaling['type'] {
  const named = fields.rope_type ?? fields.type;
  const known = architecture.ropeTypes ?? ropeTypes;
  const expected = `one of ${known.join(', ')}`;
  if (named == null) throw invalid(`${at}.rope_type`, expected, undefined, 'Name the kind of RoPE.');
  if (fields.rope_type && fields.type && fields.rope_type !== fields.type) {
    throw invalid(`${at}.type`, `${fields.rope_type}, as in rope_type`, fields.type, 'Remove one of the two.');
  }
  const type = architecture.longropeNames?.includes(named) ? 'longrope' : named;
  if (type === 'su' || !known.includes(type)) {
    const hint = `Models of type ${config.model_type} have no other kind.`;
    throw invalid(`${at}.${fields.rope_type ? 'rope_type' : 'type'}`, expected, named, hint);
  }
  return type;
}

/** The fields of one kind of RoPE, required one by one. */
class Fields {
  constructor(
    readonly fields: RopeFields,
    readonly at: string,
    readonly type: string,
    readonly config: Config,
  ) {}

  number(field: 'factor' | 'low_freq_factor' | 'high_freq_factor'): number {
    return this.fields[field] ?? this.missing(field, 'a number');
  }

  factor(): number {
    const factor = this.number('factor');
    if (factor < 1) throw invalid(`${this.at}.factor`, 'at least 1', factor, check);
    return factor;
  }

  /** Divisors of the pairs, which must be as many. */
  factors(field: 'short_factor' | 'long_factor', pairs: number): readonly number[] {
    const factors = this.fields[field] ?? this.missing(field, 'a list of numbers');
    if (factors.length === pairs) return factors;
    const expected = `${pairs} numbers, one for each rotated pair of channels`;
    throw invalid(`${this.at}.${field}`, expected, factors.length, check);
  }

  /** Context length before scaling: beside the rope parameters (Phi-3), or among them. */
  originalMaxPositions(otherwise?: number): number {
    const field = 'original_max_position_embeddings';
    const inner = this.fields[field];
    const outer = this.config[field];
    if (inner != null && outer != null && inner !== outer) {
      throw invalid(`${this.at}.${field}`, `${outer}, as beside ${this.at}`, inner, 'Give the same number twice.');
    }
    return outer ?? inner ?? otherwise ?? this.missing(field, 'a number');
  }

  missing(field: string, expected: string): never {
    throw invalid(`${this.at}.${field}`, expected, undefined, `${this.type} scaling needs it.`);
  }
}

function dynamic(read: Fields, config: Config, rotaryDim: number): RopeScaling {
  const factor = read.factor();
  const positions = config.max_position_embeddings;
  const original = read.originalMaxPositions(positions);
  if (original !== positions) {
    const expected = `max_position_embeddings (${positions}), from which dynamic scaling starts`;
    throw invalid('original_max_position_embeddings', expected, original, check);
  }
  if (rotaryDim < 4) {
    throw invalid(`${read.at}.rope_type`, 'another kind for 2 rotated channels', 'dynamic', check);
  }
  return { type: 'dynamic', factor, originalMaxPositions: original };
}

function llama3(read: Fields): RopeScaling {
  const scaling = {
    type: 'llama3',
    factor: read.factor(),
    lowFreqFactor: read.number('low_freq_factor'),
    highFreqFactor: read.number('high_freq_factor'),
    originalMaxPositions: read.originalMaxPositions(),
  } as const;
  if (scaling.highFreqFactor <= scaling.lowFreqFactor) {
    const expected = `more than low_freq_factor (${scaling.lowFreqFactor})`;
    throw invalid(`${read.at}.high_freq_factor`, expected, scaling.highFreqFactor, check);
  }
  return scaling;
}

function yarn(read: Fields, config: Config): RopeScaling {
  const { beta_fast: fast, beta_slow: slow, truncate } = read.fields;
  const betaFast = fast ?? 32;
  const betaSlow = slow ?? 1;
  if (betaFast < betaSlow) {
    throw invalid(`${read.at}.beta_fast`, `at least beta_slow (${betaSlow})`, betaFast, check);
  }
  return {
    type: 'yarn',
    factor: read.factor(),
    originalMaxPositions: read.originalMaxPositions(config.max_position_embeddings),
    betaFast,
    betaSlow,
    truncate: truncate ?? true,
  };
}

/**
 * YaRN's magnitude for a context that is so many times as long.
 *
 * @example
 * magnitude(40, 1); // 1.3688879454113936
 */
export function magnitude(factor: number, scale: number): number {
  return 0.1 * scale * Math.log(factor) + 1;
}

function yarnAttentionFactor(fields: RopeFields, factor: number): number {
  if (fields.attention_factor != null) return fields.attention_factor;
  if (fields.mscale && fields.mscale_all_dim) {
    return magnitude(factor, fields.mscale) / magnitude(factor, fields.mscale_all_dim);
  }
  return magnitude(factor, 1);
}

function longrope(read: Fields, config: Config, rotaryDim: number): ReadScaling {
  const original = read.originalMaxPositions();
  const factor = read.fields.factor != null ? read.factor() : config.max_position_embeddings / original;
  const inferred = factor <= 1 ? 1 : Math.sqrt(1 + Math.log(factor) / Math.log(original));
  if (!Number.isFinite(inferred)) {
    const hint = 'The factor on cosine and sine divides by its logarithm.';
    throw invalid('original_max_position_embeddings', 'at least 2', original, hint);
  }
  const scaling = {
    type: 'longrope',
    originalMaxPositions: original,
    shortFactors: read.factors('short_factor', rotaryDim / 2),
    longFactors: read.factors('long_factor', rotaryDim / 2),
  } as const;
  return { type: 'longrope', attentionFactor: read.fields.attention_factor ?? inferred, scaling };
}
