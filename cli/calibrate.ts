import { readFile } from 'node:fs/promises';
import { basename } from 'node:path';
import { KvforgeError } from '../dsl/errors.js';
import { geometryOf } from '../dsl/geometry.js';
import { layerShape, type ModelShape } from '../dsl/model.js';
import type { TiltGeometry } from '../dsl/tiltGeometry.js';
import { type Calibration, packCalibration, parseCalibration } from '../runtime/calibrate/file.js';
import { type CalibrationText, fitTexts } from '../runtime/calibrate/fit.js';
import { type LayerSpectrum, spectrumOf } from '../runtime/calibrate/spectrum.js';
import { type PromptLayer, promptLayers } from '../runtime/promptLayers.js';
import type { HeadTensor } from '../runtime/reference/shapes.js';
import type { TiltFit } from '../runtime/reference/tiltEncode.js';
import { parseSafetensors, tensorValues } from '../runtime/safetensors.js';
import { inFile } from './inFile.js';
import type { Context, Outcome } from './output.js';
import { requirePlace, writeWhole } from './outputFolder.js';
import { resolveModel, resolveScheme } from './resolve.js';
import { duration, grouped, table } from './table.js';

export interface CalibrateOptions {
  readonly model: string;
  readonly scheme: string;
  readonly out: string;
}

interface Text {
  readonly name: string;
  readonly layers: readonly PromptLayer[];
}

/** Fits weights, transforms and widths of every layer to recorded texts, a layer at a time, and writes them. */
export async function calibrateCommand(
  context: Context,
  files: readonly string[],
  { model: modelName, scheme: schemeName, out }: CalibrateOptions,
): Promise<Outcome> {
  await requirePlace(out, '--out');
  const model = await resolveModel(modelName);
  const g = await tiltGeometry('--scheme', schemeName, model);
  const texts: Text[] = [];
  for (const file of files) texts.push(await textOf(file, g));
  checkLayers(texts);

  const started = performance.now();
  const layers = new Map<number, TiltFit>();
  const spectra: (LayerSpectrum & { readonly layer: number })[] = [];
  for (const { layer } of texts[0]!.layers) {
    const from = performance.now();
    const own = texts.map(({ layers: all }) => activationsOf(all.find((each) => each.layer === layer)!, model));
    const fit = fitTexts(g, layerShape(model, layer), own);
    layers.set(layer, fit);
    spectra.push({ layer, ...spectrumOf(fit, g.groupComponents) });
    context.progress(`layer ${layer}: ${duration(performance.now() - from)}`);
  }
  const named = texts.map(({ name, layers: [first] }) => ({ name, tokens: first!.tokens }));
  const bytes = await packCalibration(g, { layers, texts: named });
  await writeWhole(out, '--out', bytes);
  return {
    json: {
      scheme: g.scheme.name,
      model: model.name,
      texts: named,
      layers: spectra,
      bytes: bytes.length,
      out,
      ms: Math.round(performance.now() - started),
    },
    text: `${textOfSpectra(g, spectra, context)}\n${grouped(bytes.length)} bytes in ${out}\n`,
  };
}

/**
 * A calibration file for a scheme and a model.
 *
 * @throws KvforgeError `wrong-use` for a file that cannot be read or a scheme that takes none, `invalid-input`
 */
export async function loadCalibration(path: string, schemeName: string, model: ModelShape): Promise<Calibration> {
  const g = await tiltGeometry('--calibration', schemeName, model);
  const bytes = await contentsOf(path, '--calibration');
  return parseCalibration(bytes, g).catch((fault: unknown) =>
    inFile(path, () => {
      throw fault;
    }),
  );
}

async function tiltGeometry(option: string, name: string, model: ModelShape): Promise<TiltGeometry> {
  const scheme = await resolveScheme(name, model);
  const g = inFile(name, () => geometryOf(scheme, model));
  if (g.family === 'tilt') return g;
  throw new KvforgeError('wrong-use', {
    at: option,
    expected: 'a scheme with tile-rotated keys',
    received: scheme.name,
    hint: 'Name tilt-fast or tilt-safe; other schemes fit what they code by to every prompt.',
  });
}

async function contentsOf(path: string, option: string): Promise<Uint8Array> {
  return readFile(path).catch((cause: NodeJS.ErrnoException) => {
    const received = cause.code ?? cause.message;
    const hint = 'Give a safetensors file of less than 2 GiB.';
    const parts = { at: `${option} ${path}`, expected: 'a file that can be read', received, hint };
    throw new KvforgeError('wrong-use', parts, { cause });
  });
}

async function textOf(file: string, g: TiltGeometry): Promise<Text> {
  const bytes = await contentsOf(file, 'activations');
  const { tensors } = inFile(file, () => parseSafetensors(bytes));
  const layers = inFile(file, () => promptLayers({ tensors }, g.model));
  for (const { layer, tokens } of layers) {
    const refuse = (expected: string, received: string, hint: string) => {
      throw new KvforgeError('invalid-input', { at: `${file}: layers.${layer}`, expected, received, hint });
    };
    if (!tensors.has(`layers.${layer}.queries`)) {
      refuse('queries, which weigh the keys', 'none', 'Record layers.N.queries, F16 [heads][positions][head dim].');
    }
    if (tokens <= g.scheme.sinks + g.headDim) {
      const expected = `more than ${g.scheme.sinks + g.headDim} tokens, a key for every component`;
      refuse(expected, `${tokens}`, 'Record a longer text.');
    }
    for (const operand of ['keys', 'queries']) {
      if (tensorValues(tensors.get(`layers.${layer}.${operand}`)!).some((x) => !Number.isFinite(x))) {
        refuse(`finite ${operand}`, 'a NaN or an infinity', 'Find where the model overflows.');
      }
    }
  }
  return { name: basename(file), layers };
}

function checkLayers(texts: readonly Text[]): void {
  const listOf = ({ layers }: Text) => layers.map(({ layer }) => layer).join(', ');
  const other = texts.find((text) => listOf(text) !== listOf(texts[0]!));
  if (!other) return;
  throw new KvforgeError('invalid-input', {
    at: other.name,
    expected: `layers ${listOf(texts[0]!)}, as in ${texts[0]!.name}`,
    received: listOf(other),
    hint: 'Record the same layers of every text.',
  });
}

function activationsOf({ tokens, prompt }: PromptLayer, { heads, kvHeads, headDim }: ModelShape): CalibrationText {
  const { keys, queries } = prompt();
  const tensor = (bits: Uint16Array, count: number, length: number): HeadTensor => {
    const bytes = new Uint8Array(bits.buffer, bits.byteOffset, bits.byteLength);
    const data = tensorValues({ dtype: 'F16', shape: [count, length, headDim], bytes });
    return { heads: count, tokens: length, channels: headDim, data };
  };
  return {
    keys: tensor(keys, kvHeads, tokens),
    queries: tensor(queries!, heads, queries!.length / (heads * headDim)),
  };
}

function textOfSpectra(
  g: TiltGeometry,
  spectra: readonly (LayerSpectrum & { readonly layer: number })[],
  { colors }: Context,
): string {
  const columns = [
    { title: 'layer', align: 'right' },
    { title: 'head', align: 'right' },
    { title: '90 %', align: 'right' },
    { title: '99 %', align: 'right' },
    { title: 'bits of groups' },
    { title: 'error', align: 'right' },
  ] as const;
  const rows = spectra.flatMap(({ layer, error, heads }) =>
    heads.map(({ most, nearly, widths }, head) => [
      head === 0 ? String(layer) : '',
      String(head),
      String(most),
      String(nearly),
      widths.join(' '),
      head === 0 ? `${(100 * error).toFixed(1)} %` : '',
    ]),
  );
  const bits = 4 * g.keyNibbles * g.groupComponents;
  return `${table(columns, rows, colors)}\nComponents of ${g.headDim} that hold so much of the weighted variance; ${bits} bits a token and layer for keys\n`;
}
