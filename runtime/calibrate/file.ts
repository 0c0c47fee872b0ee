import * as z from 'zod';
import { sha256 } from '../../codegen/sha256.js';
import type { TiltGeometry } from '../../dsl/tiltGeometry.js';
import { shown } from '../cache/checkInput.js';
import type { TiltFit } from '../reference/tiltEncode.js';
import { packSafetensors, parseSafetensors, type Tensor, tensorValues } from '../safetensors.js';
import { modelHash } from '../tune/lock/format.js';
import { checkFit, refused } from './checkFit.js';
import { halfBitsOf } from './parts.js';

const format = 'kvforge-calibration';
const version = '1';
const blankDigest = '0'.repeat(64);
const digestPlace = 8 + '{"__metadata__":{"sha256":"'.length;

/** What keys of a model are coded by, of other text than the prompt's. */
export interface Calibration {
  /** By layer. */
  readonly layers: ReadonlyMap<number, TiltFit>;
  readonly texts: readonly { readonly name: string; readonly tokens: number }[];
}

/**
 * The bytes of a calibration file, which `kvforge reconstruct --calibration` and `parseCalibration` take: safetensors, bases
 * and weights in f16, with a checksum.
 *
 * @example
 * const g = geometryOf(tiltFast, presetModel('smollm2-135m'));
 * const texts = [{ name: 'a.safetensors', tokens: 300 }];
 * const file = await packCalibration(g, { layers: new Map([[2, fit]]), texts });
 * (await parseCalibration(file, g)).texts; // texts
 */
export async function packCalibration(g: TiltGeometry, { layers, texts }: Calibration): Promise<Uint8Array> {
  const { kvHeads, headDim: d, headGroups } = g;
  const tensors = new Map<string, Tensor>();
  for (const [layer, fit] of layers) {
    const half = (numbers: Float64Array) => new Uint8Array(halfBitsOf(numbers).buffer);
    const add = (name: string, dtype: Tensor['dtype'], shape: readonly number[], bytes: Uint8Array) =>
      tensors.set(`layers.${layer}.${name}`, { dtype, shape, bytes });
    add('weights', 'F16', [kvHeads, d], half(fit.weights));
    add('bases', 'F16', [kvHeads, d, d], half(Float64Array.from(fit.bases.flatMap(({ data }) => [...data]))));
    const variances = Float32Array.from(fit.variances.flatMap((values) => [...values]));
    add('variances', 'F32', [kvHeads, d], new Uint8Array(variances.buffer));
    add('widths', 'U8', [kvHeads, headGroups], Uint8Array.from(fit.widths));
  }
  const file = packSafetensors(tensors, {
    sha256: blankDigest,
    format,
    version,
    model: g.model.name,
    modelHash: await modelHash(g.model),
    parameters: JSON.stringify(parametersOf(g)),
    texts: JSON.stringify(texts),
  });
  file.set(new TextEncoder().encode(await digestOf(file)), digestPlace);
  return file;
}

const textsSchema = z.array(z.object({ name: z.string(), tokens: z.int().min(1) })).min(1);

/**
 * Reads a calibration that was made for this scheme and model.
 *
 * @param g of the kernels that it is for: bits, tile, groups and model have to be those that it was made for
 * @throws KvforgeError `invalid-input` for a file that is another's, of another version, model or scheme, or damaged
 * @example
 * const g = geometryOf(tiltFast, presetModel('smollm2-135m'));
 * const file = await packCalibration(g, { layers: new Map([[2, fit]]), texts: [{ name: 'a', tokens: 300 }] });
 *
 * const own = await LoadedKernels.load(device, await generate(tiltFast, g.model, defaultTargets[device.target]));
 * const { layers } = await parseCalibration(file, g);
 * const calibrated = KvCache.open(own, { sequences: 1, tokens: 256, generated: 0, layer: 2 });
 * await calibrated.prefill(0, { ...prompt, fit: layers.get(2)! });
 * (await calibrated.lengths(0)).promptTokens; // 256
 * await calibrated.release();
 */
export async function parseCalibration(file: Uint8Array, g: TiltGeometry): Promise<Calibration> {
  if (!(file instanceof Uint8Array)) {
    throw refused('file', 'bytes, a Uint8Array', shown(file), 'Pass what await readFile(path) gives.');
  }
  const { tensors, metadata } = parseSafetensors(file);
  const expect = (name: string, expected: string, hint: string) => {
    const received = metadata.get(name);
    if (received !== expected)
      throw refused(name, expected, received === undefined ? 'nothing' : shown(received), hint);
  };
  expect('format', format, 'Give a file that kvforge calibrate wrote.');
  expect('version', version, 'Calibrate again with this version of kvforge.');
  expect('sha256', await digestOf(file), 'The file was damaged or changed; calibrate again.');
  expect(
    'modelHash',
    await modelHash(g.model),
    `It is of ${shown(metadata.get('model'))}; calibrate for ${g.model.name}.`,
  );
  expect('parameters', JSON.stringify(parametersOf(g)), `Calibrate for ${g.scheme.name}.`);
  const texts = textsSchema.safeParse(json(metadata.get('texts')));
  if (!texts.success) throw refused('texts', 'names and tokens', shown(metadata.get('texts')), 'Calibrate again.');

  const layers = new Map<number, TiltFit>();
  for (const name of tensors.keys()) {
    const [, layer] = /^layers\.(0|[1-9]\d{0,5})\.weights$/.exec(name) ?? [];
    if (layer !== undefined) layers.set(Number(layer), fitOf(tensors, g, Number(layer)));
  }
  if (layers.size === 0) throw refused('layers.0.weights', 'weights of a layer', 'none', 'Calibrate again.');
  return { layers, texts: texts.data };
}

function fitOf(tensors: ReadonlyMap<string, Tensor>, g: TiltGeometry, layer: number): TiltFit {
  const { kvHeads, headDim: d, headGroups } = g;
  const numbers = (operand: string, dtype: Tensor['dtype'], shape: readonly number[]) => {
    const found = tensors.get(`layers.${layer}.${operand}`);
    if (found?.dtype !== dtype || found.shape.join() !== shape.join()) {
      const received = found === undefined ? 'none' : `${found.dtype} [${found.shape.join(', ')}]`;
      throw refused(`layers.${layer}.${operand}`, `${dtype} [${shape.join(', ')}]`, received, 'Calibrate again.');
    }
    return tensorValues(found);
  };
  const bases = numbers('bases', 'F16', [kvHeads, d, d]);
  const variances = numbers('variances', 'F32', [kvHeads, d]);
  const fit = {
    weights: numbers('weights', 'F16', [kvHeads, d]),
    bases: Array.from({ length: kvHeads }, (_, head) => {
      return { rows: d, columns: d, data: bases.slice(head * d * d, (head + 1) * d * d) };
    }),
    variances: Array.from({ length: kvHeads }, (_, head) => variances.slice(head * d, (head + 1) * d)),
    widths: [...numbers('widths', 'U8', [kvHeads, headGroups])],
  };
  checkFit(g, fit, `layers.${layer}`);
  return fit;
}

/** What decides the shape and the sense of a fit; values have no part in it. */
function parametersOf({ scheme, tile, groupComponents, keyNibbles }: TiltGeometry) {
  return { tile, groupComponents, keyNibbles, bits: scheme.keys[2].bits };
}

/** SHA-256 of the file with zeros where the digest is. */
function digestOf(file: Uint8Array): Promise<string> {
  const blank = Uint8Array.from(file);
  blank.fill('0'.charCodeAt(0), digestPlace, digestPlace + blankDigest.length);
  return sha256(blank);
}

function json(text: string | undefined): unknown {
  try {
    return JSON.parse(text ?? 'null');
  } catch {
    return undefined;
  }
}
