/** What examples of calibrations may name; apart from the other values, since making them takes a second. */
import { geometryOf, layerShape, presetModel, tiltFast } from '../../dsl/index.js';
import { fitTexts } from '../../runtime/calibrate/fit.js';
import type { HeadTensor } from '../../runtime/reference/shapes.js';
import { halfValues } from '../../runtime/verify/draws.js';
import { halves } from '../runtime/cacheCase.js';

const model = presetModel('smollm2-135m');
const { kvHeads, heads, headDim, width } = model;

function tensor(rows: number, tokens: number, seed: number): HeadTensor {
  return { heads: rows, tokens, channels: headDim, data: halfValues(halves(rows * tokens * headDim, seed)) };
}

/** Activations of a layer of SmolLM2-135M: 300 tokens, 16 query positions. */
export const text = { keys: tensor(kvHeads, 300, 1), queries: tensor(heads, 16, 2) };

/** The fit of layer 2 to them. */
export const fit = fitTexts(geometryOf(tiltFast, model), layerShape(model, 2), [text]);

/** A prompt of that model. */
export const prompt = { keys: halves(width * 256, 3), values: halves(width * 256, 4), tokens: 256 };
