import { readFile } from 'node:fs/promises';
import { generate } from '../codegen/generate.js';
import { halfPrecisionBytes } from '../codegen/plan/layout.js';
import { KvforgeError } from '../dsl/errors.js';
import { geometryOf } from '../dsl/geometry.js';
import type { Scheme } from '../dsl/scheme.js';
import { KvCache } from '../runtime/cache.js';
import type { Device } from '../runtime/device.js';
import { LoadedKernels } from '../runtime/kernels.js';
import { layerTensors, promptLayers } from '../runtime/promptLayers.js';
import { packSafetensors, parseSafetensors, type Tensor } from '../runtime/safetensors.js';
import { targetFor } from '../runtime/targetFor.js';
import { loadCalibration } from './calibrate.js';
import { deviceNames, openDevice } from './devices.js';
import { inFile } from './inFile.js';
import type { Context, Outcome } from './output.js';
import { requirePlace, writeWhole } from './outputFolder.js';
import { resolveModel, resolveScheme } from './resolve.js';
import { duration, grouped } from './table.js';
import { oneOfNames } from './values.js';

export interface ReconstructOptions {
  readonly model: string;
  readonly device: string;
  readonly input: string;
  readonly output: string;
  readonly calibration?: string;
}

interface ReconstructedLayer {
  readonly layer: number;
  readonly tokens: number;
  /** Allocated for the compressed layer. */
  readonly bytes: number;
  readonly fp16Bytes: number;
  readonly ms: number;
}

/** Where every layer has a scheme of its own, the end of a name that stands for the layer: `mix.ts#layer*`. */
const anyLayer = /(?<=#[^#]*)\*$/;

/** Compresses the layers of a file and writes what the kernels of a device read back. */
export async function reconstruct(
  context: Context,
  schemeName: string,
  { model: modelName, device: deviceName, input, output, calibration: calibrationFile }: ReconstructOptions,
  open: typeof openDevice = openDevice,
): Promise<Outcome> {
  const named = oneOfNames('--device', deviceName, deviceNames);
  if (calibrationFile !== undefined && anyLayer.test(schemeName)) {
    throw new KvforgeError('wrong-use', {
      at: '--calibration',
      expected: 'one scheme for all layers',
      received: JSON.stringify(schemeName),
      hint: 'A calibration is of one scheme: name it, and give a file of the layers that have it.',
    });
  }
  await requirePlace(output, '--output');
  const model = await resolveModel(modelName);
  const shared = anyLayer.test(schemeName) ? undefined : await resolveScheme(schemeName, model);
  const title = shared?.name ?? schemeName;
  const bytes = await readFile(input).catch((cause: NodeJS.ErrnoException) => {
    const parts = {
      at: `--input ${input}`,
      expected: 'a file that can be read',
      received: cause.code ?? cause.message,
    };
    const hint = 'Give a safetensors file of less than 2 GiB; layers may be spread over several.';
    throw new KvforgeError('wrong-use', { ...parts, hint }, { cause });
  });
  const layers = inFile(input, () => promptLayers(parseSafetensors(bytes), model));
  const schemes = new Map<number, Scheme>();
  for (const { layer } of layers) {
    const name = schemeName.replace(anyLayer, `${layer}`);
    const scheme = shared ?? (await resolveScheme(name, model));
    // What does not fit the model is refused by the scheme's name, and before a device is opened.
    inFile(name, () => geometryOf(scheme, model));
    schemes.set(layer, scheme);
  }

  const calibration =
    calibrationFile === undefined ? undefined : await loadCalibration(calibrationFile, schemeName, model);
  const fitOf = (layer: number) => {
    const fit = calibration?.layers.get(layer);
    if (calibration === undefined || fit) return fit && { fit };
    throw new KvforgeError('invalid-input', {
      at: `--calibration ${calibrationFile}`,
      expected: `layer ${layer}`,
      received: [...calibration.layers.keys()].join(', '),
      hint: 'Calibrate with activations of all layers.',
    });
  };
  for (const { layer } of layers) fitOf(layer);

  const tensors = new Map<string, Tensor>();
  const done: ReconstructedLayer[] = [];
  const device = await open(named, { checks: 'none' }, context);
  const started = performance.now();
  try {
    const load = async (scheme: Scheme) => loadCoders(device, await generate(scheme, model, targetFor(device)));
    const kernelsOfAll = shared && (await load(shared));
    context.progress(`reconstructing ${layers.length} layers by ${title}: ${device.description}`);
    for (const { layer, tokens, prompt } of layers) {
      const from = performance.now();
      const kernels = kernelsOfAll ?? (await load(schemes.get(layer)!));
      const cache = KvCache.open(kernels, { sequences: 1, tokens, generated: 0, layer });
      try {
        await cache.prefill(0, { ...prompt(), ...fitOf(layer) });
        const decoded = await cache.decompress(0);
        for (const [name, tensor] of layerTensors(layer, decoded, model)) tensors.set(name, tensor);
        const fp16Bytes = halfPrecisionBytes(kernels.geometry, tokens);
        done.push({ layer, tokens, bytes: cache.bytes, fp16Bytes, ms: Math.round(performance.now() - from) });
      } finally {
        await cache.release();
      }
      context.progress(`layer ${layer}: ${duration(performance.now() - from)}`);
    }
  } finally {
    await device.close();
  }
  await writeWhole(output, '--output', packSafetensors(tensors, { scheme: title, model: model.name }));

  const sum = (of: (layer: ReconstructedLayer) => number) => done.reduce((total, layer) => total + of(layer), 0);
  const [compressed, fp16Bytes] = [sum((layer) => layer.bytes), sum((layer) => layer.fp16Bytes)];
  const ms = Math.round(performance.now() - started);
  return {
    json: {
      scheme: title,
      model: model.name,
      device: device.description,
      layers: done,
      bytes: compressed,
      fp16Bytes,
      output,
      ms,
    },
    text: `${title} on ${model.name}: ${done.length} layers, ${grouped(compressed)} bytes; fp16 ${grouped(fp16Bytes)}; ${duration(ms)}\n`,
  };
}

/** Compiling attention would take longer than anything else here, and nothing attends. */
function loadCoders(device: Device, generated: Awaited<ReturnType<typeof generate>>): Promise<LoadedKernels> {
  const entries = generated.manifest.kernels.map(({ entry }) => entry);
  return LoadedKernels.load(
    device,
    generated,
    entries.filter((entry) => !/^(attend|append)/.test(entry)),
  );
}
