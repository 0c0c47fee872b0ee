import type { Architecture, ThetaField } from './architectures.js';
import type { Config, RopeFields, RopeScalingFields } from './config.js';
import { invalid } from './invalid.js';
import { type RopeShape, scaledFrequencies } from './scaling.js';
import { type ReadScaling, readScaling } from './scalingConfig.js';

/** The RoPE of the layers with full attention and of those that slide; the same in most models. */
export interface RopeShapes {
  readonly full: RopeShape;
  readonly sliding: RopeShape;
}

const remove = 'Remove one of the two.';
const perType = 'Give full_attention and sliding_attention.';
const usualBase: ThetaField = { field: 'rope_theta', value: 10000 };

/**
 * The RoPE that a configuration asks for, in the form of transformers 4 (`rope_theta`, `rope_scaling`) or 5
 * (`rope_parameters`, for Gemma 3 and OLMo 3 one set for each type of layer).
 *
 * @param headDim channels of one head, even
 * @example
 * ropesOf(config, architectures[config.model_type], 128).full.rotaryDim; // 128
 */
export function ropesOf(config: Config, architecture: Architecture, headDim: number): RopeShapes {
  requirePairing(config, architecture);
  const { rope_scaling: older, rope_parameters: newer } = config;
  if (older) requireOneSet(older, 'rope_scaling');
  const own: Reading = { config, architecture, headDim, base: architecture.base ?? usualBase };
  const olderSet = older ? { at: 'rope_scaling', fields: older } : undefined;
  if (!architecture.ropePerLayerType) {
    if (newer) requireOneSet(newer, 'rope_parameters');
    const rope = ropeOf(own, newer ? { at: 'rope_parameters', fields: newer } : undefined, olderSet);
    requireUnusedBases(config, [own.base.field], rope.theta);
    return { full: rope, sliding: rope };
  }
  if (newer) requireSetPerType(newer);
  const set = (type: 'full_attention' | 'sliding_attention') =>
    newer?.[type] ? { at: `rope_parameters.${type}`, fields: newer[type] } : undefined;
  const full = ropeOf(own, set('full_attention'), olderSet);
  const local = { ...own, base: architecture.slidingBase ?? own.base };
  const sliding = ropeOf(local, set('sliding_attention'), undefined);
  requireUnusedBases(config, [own.base.field, local.base.field], full.theta);
  return { full, sliding };
}

/**
 * A layer without RoPE, of a model whose other layers have this one.
 *
 * @example
 * withoutRope(model.rope).invFreq; // zeros
 */
export function withoutRope(rope: RopeShape): RopeShape {
  const { theta, rotaryDim, pairing, invFreq } = rope;
  return { type: 'none', theta, rotaryDim, pairing, attentionFactor: 1, invFreq: invFreq.map(() => 0) };
}

interface Reading {
  readonly config: Config;
  readonly architecture: Architecture;
  readonly headDim: number;
  readonly base: ThetaField;
}

/** One set of rope parameters, and its path for errors. */
interface Place {
  readonly at: string;
  readonly fields: RopeFields;
}

function ropeOf(reading: Reading, newer: Place | undefined, older: Place | undefined): RopeShape {
  const { config, architecture, headDim, base } = reading;
  const rotaryDim = rotaryDimOf(newer ?? older, config, architecture, headDim);
  const read = ({ fields, at }: Place) => readScaling(fields, at, config, architecture, rotaryDim);
  const olderRead = older && read(older);
  const newerRead = newer && read(newer);
  if (olderRead && newerRead && JSON.stringify(olderRead) !== JSON.stringify(newerRead)) {
    throw invalid('rope_scaling', `the same as ${newer!.at}`, older!.fields, remove);
  }
  const { type, attentionFactor, scaling }: ReadScaling = newerRead ??
    olderRead ?? { type: 'default', attentionFactor: 1 };
  const theta = thetaOf(newer?.fields.rope_theta ?? older?.fields.rope_theta, config, base);
  const invFreq = scaledFrequencies(theta, rotaryDim, scaling);
  const pairing = architecture.pairing ?? 'half';
  return { type, theta, rotaryDim, pairing, attentionFactor, ...(scaling && { scaling }), invFreq };
}

function thetaOf(nested: number | null | undefined, config: Config, { field, value }: ThetaField): number {
  const outer = config[field];
  if (nested != null && outer != null && nested !== outer) {
    throw invalid(field, `${nested}, as in the rope parameters`, outer, remove);
  }
  return nested ?? outer ?? value;
}

/** A base in a field that the architecture does not read must not be another one. */
function requireUnusedBases(config: Config, read: readonly ThetaField['field'][], theta: number): void {
  for (const field of ['rope_theta', 'rotary_emb_base', 'rope_local_base_freq'] as const) {
    const value = config[field];
    if (read.includes(field) || value == null || value === theta) continue;
    throw invalid(field, `nothing, as ${config.model_type} reads ${read[0]}`, value, 'The model would ignore it.');
  }
}

function rotaryDimOf(place: Place | undefined, config: Config, architecture: Architecture, headDim: number): number {
  const { rotated } = architecture;
  const nested = place?.fields.partial_rotary_factor;
  const nestedAt = `${place?.at}.partial_rotary_factor`;
  for (const field of ['partial_rotary_factor', 'rotary_pct'] as const) {
    const value = config[field];
    if (value == null || rotated?.field === field || (value === 1 && !rotated)) continue;
    const expected = rotated ? `nothing, as ${config.model_type} reads ${rotated.field}` : wholeHead(config);
    throw invalid(field, expected, value, 'The model would ignore it.');
  }
  if (!rotated) {
    if (nested != null && nested !== 1)
      throw invalid(nestedAt, wholeHead(config), nested, 'The model would ignore it.');
    return headDim;
  }
  const outer = config[rotated.field];
  if (nested != null && outer != null && nested !== outer) {
    throw invalid(rotated.field, `${nested}, as in the rope parameters`, outer, remove);
  }
  const share = nested ?? outer ?? rotated.value;
  // As int() in Python.
  const rotaryDim = Math.trunc(headDim * share);
  if (rotaryDim >= 2 && rotaryDim % 2 === 0) return rotaryDim;
  const expected = `a share that is an even number of the ${headDim} channels (it is ${rotaryDim})`;
  throw invalid(nested == null ? rotated.field : nestedAt, expected, share, 'RoPE rotates channels in pairs.');
}

function wholeHead(config: Config): string {
  return `1 (${config.model_type} rotates the whole head)`;
}

function requireOneSet(fields: RopeScalingFields, at: string): void {
  for (const type of ['full_attention', 'sliding_attention'] as const) {
    if (fields[type] == null) continue;
    throw invalid(
      `${at}.${type}`,
      'one set of rope parameters for all layers',
      fields[type],
      'Give it without a type.',
    );
  }
}

/** A set for all layers, or for a type that no layer has, would be ignored. */
function requireSetPerType(fields: RopeScalingFields): void {
  const { full_attention: full, sliding_attention: sliding, ...others } = fields;
  if (full == null && sliding == null) {
    throw invalid('rope_parameters.full_attention', 'an object for each type of layer', undefined, perType);
  }
  for (const [name, value] of Object.entries(others)) {
    if (value != null) throw invalid(`rope_parameters.${name}`, 'nothing beside the types of layer', value, perType);
  }
}

function requirePairing(config: Config, architecture: Architecture): void {
  const interleaved = architecture.pairing === 'interleaved';
  for (const field of ['rope_interleave', 'rope_interleaved'] as const) {
    const value = config[field];
    if (value == null || value === interleaved) continue;
    // DeepSeek-V3 would follow it.
    const hint = architecture.latent
      ? 'Other pairings of such models are not supported.'
      : 'The model would ignore it.';
    throw invalid(field, `${interleaved}, as in ${config.model_type}`, value, hint);
  }
}
