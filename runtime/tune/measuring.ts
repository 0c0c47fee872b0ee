import { type GeneratedKernels, generate } from '../../codegen/generate.js';
import { type ErrorParts, KvforgeError } from '../../dsl/errors.js';
import type { ModelShape } from '../../dsl/model.js';
import type { Scheme } from '../../dsl/scheme.js';
import type { Target } from '../../dsl/stage.js';
import { checkKernel } from '../checks.js';
import type { CompiledKernel, Device, KernelText } from '../device.js';
import { LoadedKernels } from '../kernels.js';
import type { Bench, Prepared } from './bench.js';
import { AttendBench, DecompressBench } from './cacheBench.js';
import { CandidateCheck } from './check.js';
import { failureText } from './child.js';
import { PromptBench } from './promptBench.js';
import type { Reply, Variant, Work } from './protocol.js';
import { planSamples } from './sampling.js';
import { shapeText } from './shapeClass.js';
import type { NamedTunables } from './space.js';

/** Times candidates on one device, in the process that may not survive them. */
export class Measuring {
  readonly #device: Device;
  readonly #scheme: Scheme;
  readonly #model: ModelShape;
  readonly #check = new CandidateCheck();
  #bench: { readonly name: string; readonly bench: Bench } | undefined;

  constructor(device: Device, scheme: Scheme, model: ModelShape) {
    compileOnce(device);
    this.#device = device;
    this.#scheme = scheme;
    this.#model = model;
  }

  /** @param checked the same texts were found right before */
  async measure(target: Target, work: Work, variant: Variant, checked: boolean): Promise<Reply> {
    const texts = await this.#texts(target, work.stage, variant.tunables);
    const beyond = this.#beyondLimits(texts, work.stage);
    if (beyond !== undefined) return { type: 'refused', reason: failureText(beyond) };
    const found = checked ? undefined : await this.#check.run(this.#device, work.stage, texts);
    const worst = found?.faults[0];
    if (worst !== undefined) return { type: 'wrong', reason: worst };
    const prepared = await this.#prepare(work, texts, variant);
    try {
      const plan = await planSamples(this.#device, prepared.lists);
      const samples = await this.#device.time(prepared.lists, plan);
      return { type: 'measured', samples, error: found?.error, bytes: prepared.bytes, cold: prepared.cold };
    } finally {
      prepared.release();
    }
  }

  async compile(target: Target, stage: string, list: readonly NamedTunables[]): Promise<Reply> {
    const one = async (tunables: NamedTunables) => {
      const texts = await this.#texts(target, stage, tunables);
      await LoadedKernels.load(this.#device, texts, ownEntries(texts, stage));
    };
    await Promise.allSettled(list.map(one));
    return { type: 'compiled' };
  }

  async repeat(target: Target, work: Work, variants: readonly Variant[]): Promise<Reply> {
    const all: Prepared[] = [];
    try {
      for (const variant of variants) {
        const texts = await this.#texts(target, work.stage, variant.tunables);
        all.push(await this.#prepare(work, texts, variant));
      }
      const plans = [];
      for (const { lists } of all) plans.push(await planSamples(this.#device, lists));
      const samples: number[][] = all.map(() => []);
      const turns = Math.max(...plans.map((plan) => plan.samples));
      for (let turn = 0; turn < turns; turn++) {
        for (const [i, { lists }] of all.entries()) {
          samples[i]!.push(...(await this.#device.time(lists, { samples: 1, rounds: plans[i]!.rounds })));
        }
      }
      return { type: 'repeated', samples };
    } finally {
      for (const prepared of all) prepared.release();
    }
  }

  /**
   * What the device's limits have against a candidate. A feature that it lacks is another matter: the target asks for it, so
   * no candidate could run, and compiling says so.
   */
  #beyondLimits({ manifest }: GeneratedKernels, stage: string): ErrorParts | undefined {
    const device = this.#device;
    for (const descriptor of manifest.kernels) {
      const { requires } = descriptor;
      if (descriptor.stage !== stage || requires.some((feature) => !device.features.has(feature))) continue;
      try {
        checkKernel({ descriptor, source: '' }, device);
      } catch (error) {
        if (error instanceof KvforgeError && error.code === 'missing-capability') return error.parts;
        throw error;
      }
    }
    return undefined;
  }

  #texts(target: Target, stage: string, tunables: NamedTunables): Promise<GeneratedKernels> {
    return generate(this.#scheme, this.#model, target, { [stage]: tunables });
  }

  async #prepare(work: Work, texts: GeneratedKernels, variant: Variant): Promise<Prepared> {
    const readsCaches = work.stage === 'attend' || work.stage === 'decompress';
    const own = ownEntries(texts, work.stage);
    // A stage of a prompt's compression reads what those before it wrote.
    const kernels = await LoadedKernels.load(this.#device, texts, readsCaches ? own : undefined);
    const name = `${work.stage} ${shapeText(work.shape)}`;
    if (this.#bench?.name !== name) {
      this.#bench?.bench.release();
      this.#bench = undefined;
      this.#bench = { name, bench: benchOf(kernels, work) };
    }
    const prepared = await this.#bench.bench.prepare(kernels, variant);
    if (prepared.lists.some((list) => list.length > 0)) return prepared;
    prepared.release();
    throw new KvforgeError('does-not-fit', {
      at: `${work.stage}, ${shapeText(work.shape)}`,
      expected: 'a shape with work for the stage',
      received: 'one for which it launches nothing',
      hint: 'Give more tokens.',
    });
  }
}

function ownEntries({ manifest }: GeneratedKernels, stage: string): readonly string[] {
  return manifest.kernels.filter((kernel) => kernel.stage === stage).map(({ entry }) => entry);
}

function benchOf(kernels: LoadedKernels, { stage, shape }: Work): Bench {
  if (stage === 'attend') return new AttendBench(kernels, shape);
  if (stage === 'decompress') return new DecompressBench(kernels, shape);
  return new PromptBench(stage, shape);
}

/** Makes a device compile every text once: the stages around the one that is tuned do not change. */
function compileOnce(device: Device): void {
  const compile = device.compile.bind(device);
  const known = new Map<string, Promise<CompiledKernel>>();
  device.compile = (kernels) => {
    const missing = kernels.filter(({ source }) => !known.has(source));
    const compiled = missing.length === 0 ? Promise.resolve([]) : compile(missing);
    for (const [i, { source }] of missing.entries()) {
      const one = compiled.then((list) => list[i]!);
      // Whoever asked for it gets the error; a later request compiles again.
      one.catch(() => known.delete(source));
      known.set(source, one);
    }
    return Promise.all(kernels.map(({ source }: KernelText) => known.get(source)!));
  };
}
