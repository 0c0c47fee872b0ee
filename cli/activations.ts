import { packagePath } from '../codegen/packageRoot.js';
import { KvforgeError } from '../dsl/errors.js';
import type { ModelShape } from '../dsl/model.js';
import { type Activations, differingField, loadActivations } from '../runtime/report/activations.js';
import { commaList, oneOfNames } from './values.js';

/**
 * Activations of a model: those of a file, or the ones that come with kvforge where they are of the model.
 *
 * @throws KvforgeError `wrong-use` where there are none and for a model of latents, `invalid-input` for a file that is not of the model
 */
export async function activationsFor(model: ModelShape, path: string | undefined): Promise<Activations> {
  if (model.latent !== undefined) {
    throw new KvforgeError('wrong-use', {
      at: '--model',
      expected: 'a model with keys and values, as activations are these',
      received: `${model.name}, whose tokens are latents`,
      hint: 'kvforge verify holds kernels of latents to float64.',
    });
  }
  if (path !== undefined) return loadActivations(path, model);
  const bundled = await loadActivations(packagePath('test', 'fixtures', 'smollm2-135m-kv.safetensors'));
  if (differingField(model, bundled.model) === undefined) return bundled;
  throw new KvforgeError('wrong-use', {
    at: '--activations',
    expected: `a file of activations recorded from ${model.name}`,
    received: 'none',
    hint: `Those that come with kvforge are of ${bundled.model.name}; docs/compare.md says what a file holds.`,
  });
}

/** The layers that `--layers` lists; all of them without it. */
export function layersOf(list: string | undefined, { layers }: Pick<Activations, 'layers'>): readonly number[] {
  if (list === undefined) return layers;
  return commaList(list).map((text) => Number(oneOfNames('--layers', text, layers.map(String))));
}
