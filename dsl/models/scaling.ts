/** Position interpolation: all pairs slower by one factor. Source: kaiokendev 2023; Chen et al. 2023. */
export interface LinearScaling {
  readonly type: 'linear';
  readonly factor: number;
}

/**
 * Dynamic NTK: beyond the original context, a base that grows with the length, up to factor times as many positions.
 * Source: emozilla, bloc97 2023.
 */
export interface DynamicScaling {
  readonly type: 'dynamic';
  readonly factor: number;
  /** Context length before scaling, in positions; the other kinds alike. */
  readonly originalMaxPositions: number;
}

/** YaRN: slow pairs interpolated, fast ones kept, a linear ramp between. Source: Peng et al. 2023. */
export interface YarnScaling {
  readonly type: 'yarn';
  readonly factor: number;
  readonly originalMaxPositions: number;
  /** Turns within the original context: pairs with more keep their frequency. */
  readonly betaFast: number;
  /** Turns within the original context: pairs with fewer are slowed by the whole factor. */
  readonly betaSlow: number;
  /** Whether the ramp begins and ends at whole pairs. */
  readonly truncate: boolean;
}

/** Llama 3.1's stretch of the slow pairs, by wavelength in positions. */
export interface Llama3Scaling {
  readonly type: 'llama3';
  readonly factor: number;
  readonly lowFreqFactor: number;
  readonly highFreqFactor: number;
  readonly originalMaxPositions: number;
}

/** LongRoPE: a divisor for each pair, one set up to the original context and one beyond. Source: Ding et al. 2024. */
export interface LongropeScaling {
  readonly type: 'longrope';
  readonly originalMaxPositions: number;
  /** [rotaryDim/2] */
  readonly shortFactors: readonly number[];
  /** [rotaryDim/2] */
  readonly longFactors: readonly number[];
}

export type RopeScaling = LinearScaling | DynamicScaling | YarnScaling | Llama3Scaling | LongropeScaling;

/** How keys and queries are rotated: pair j of a head turns by `position * frequency[j]` radians. */
export interface RopeShape {
  /** none: layers without RoPE, all frequencies 0. */
  readonly type: 'default' | 'linear' | 'dynamic' | 'yarn' | 'llama3' | 'longrope' | 'none';
  readonly theta: number;
  /** Channels of a head that are rotated: even, at most headDim. */
  readonly rotaryDim: number;
  /** half: channels j and j + rotaryDim/2; interleaved: 2j and 2j + 1. Channels from rotaryDim on are not rotated. */
  readonly pairing: 'half' | 'interleaved';
  /**
   * Factor on cosine and sine (YaRN, longrope), 1 otherwise. It is already in the keys and queries that a model gives,
   * so kernels leave it alone.
   */
  readonly attentionFactor: number;
  readonly scaling?: RopeScaling;
  /** [rotaryDim/2], radians per position, for sequences up to the original context. */
  readonly invFreq: readonly number[];
}

/**
 * Frequencies for a sequence of `positions` tokens, [rotaryDim/2], radians per position: dynamic NTK and longrope take
 * others beyond the original context; elsewhere they are `invFreq`.
 *
 * One set holds for the whole sequence. transformers rotates each token by the set of the length at which it came, so
 * keys that were rotated before a sequence outgrew the original context do not belong to the set of the longer one.
 *
 * @example
 * frequenciesFor(model.rope, 8192).length; // model.rope.rotaryDim / 2
 */
export function frequenciesFor(rope: RopeShape, positions: number): readonly number[] {
  const { scaling, theta, rotaryDim, invFreq } = rope;
  if (scaling?.type === 'dynamic' && positions > scaling.originalMaxPositions) {
    const { factor, originalMaxPositions } = scaling;
    const stretch = (factor * positions) / originalMaxPositions - (factor - 1);
    return defaultFrequencies(theta * stretch ** (rotaryDim / (rotaryDim - 2)), rotaryDim);
  }
  if (scaling?.type === 'longrope' && positions > scaling.originalMaxPositions) {
    return defaultFrequencies(theta, rotaryDim).map((frequency, pair) => frequency / scaling.longFactors[pair]!);
  }
  return invFreq;
}

/**
 * Frequencies up to the original context, [rotaryDim/2], radians per position.
 * Source: `modeling_rope_utils.py` of Hugging Face transformers 5.24, in float64.
 *
 * @example
 * scaledFrequencies(10000, 64, { type: 'linear', factor: 4 })[0]; // 0.25
 */
export function scaledFrequencies(theta: number, rotaryDim: number, scaling?: RopeScaling): readonly number[] {
  const unscaled = defaultFrequencies(theta, rotaryDim);
  switch (scaling?.type) {
    case undefined:
    case 'dynamic':
      return unscaled;
    case 'linear':
      return unscaled.map((frequency) => frequency / scaling.factor);
    case 'longrope':
      return unscaled.map((frequency, pair) => frequency / scaling.shortFactors[pair]!);
    case 'llama3':
      return unscaled.map((frequency) => stretched(frequency, scaling));
    case 'yarn': {
      const ramp = yarnRamp(theta, rotaryDim, scaling);
      return unscaled.map((frequency, pair) => {
        const kept = 1 - ramp(pair);
        return (frequency / scaling.factor) * (1 - kept) + frequency * kept;
      });
    }
  }
}

function defaultFrequencies(theta: number, rotaryDim: number): number[] {
  return Array.from({ length: rotaryDim / 2 }, (_, pair) => 1 / theta ** ((2 * pair) / rotaryDim));
}

function stretched(frequency: number, scaling: Llama3Scaling): number {
  const { factor, lowFreqFactor, highFreqFactor, originalMaxPositions } = scaling;
  const wavelength = (2 * Math.PI) / frequency;
  if (wavelength > originalMaxPositions / lowFreqFactor) return frequency / factor;
  if (wavelength < originalMaxPositions / highFreqFactor) return frequency;
  const smooth = (originalMaxPositions / wavelength - lowFreqFactor) / (highFreqFactor - lowFreqFactor);
  return ((1 - smooth) * frequency) / factor + smooth * frequency;
}

/** How far each pair is interpolated: 0 for the fast ones, 1 for the slow ones. */
function yarnRamp(theta: number, rotaryDim: number, scaling: YarnScaling): (pair: number) => number {
  const pairWithTurns = (turns: number) =>
    (rotaryDim * Math.log(scaling.originalMaxPositions / (turns * 2 * Math.PI))) / (2 * Math.log(theta));
  const round = scaling.truncate ? { down: Math.floor, up: Math.ceil } : { down: Number, up: Number };
  const low = Math.max(round.down(pairWithTurns(scaling.betaFast)), 0);
  const end = Math.min(round.up(pairWithTurns(scaling.betaSlow)), rotaryDim - 1);
  const high = end === low ? end + 0.001 : end;
  return (pair) => Math.min(Math.max((pair - low) / (high - low), 0), 1);
}
