import { z } from 'zod';
import { packagePath } from '../../codegen/packageRoot.js';
import { KvforgeError } from '../../dsl/errors.js';
import { layerShape, type ModelShape } from '../../dsl/model.js';
import type { DeviceIdentity } from '../device.js';
import type { ShapeClass } from '../tune/shapeClass.js';
import { LineProcess } from './lineProcess.js';
import type { Timed } from './timed.js';

const missing = z.object({ missing: z.string() });
const failed = z.object({ failed: z.string() });
const versions = z.object({ torch: z.string(), cuda: z.string(), cudnn: z.string(), device: z.string() });
const prepared = z.object({
  copies: z.int().positive(),
  bytes: z.int().positive(),
  maxError: z.number().nonnegative(),
});
const times = z.object({ us: z.array(z.number().positive()) });

export type TorchVersions = z.infer<typeof versions>;
export type CudnnPrepared = z.infer<typeof prepared>;

export interface CudnnOptions {
  /** Python that has torch. */
  readonly python: string;
  /** The script; `bench/cudnn_attend.py` of the package if left out. */
  readonly script?: string;
  /** Longest time that it may take to start, and to answer. */
  readonly limitsMs?: { readonly start: number; readonly answer: number };
}

/** Bytes of keys and values that rotate, at least; more where a quarter of them would fit into the cache. */
const leastRotated = 2 ** 28;

/**
 * Attention of cuDNN, in a Python process of its own.
 *
 * Every method throws KvforgeError `missing-capability` with the reason when it cannot do what it is asked: no Python, no
 * torch, no cuDNN, another GPU than the one that is compared, a crash, silence.
 */
export class CudnnAttention implements Timed {
  readonly name = 'cudnn';
  readonly versions: TorchVersions;
  readonly #process: LineProcess;
  readonly #answerMs: number;
  readonly #rotateBytes: number;

  private constructor(
    process: LineProcess,
    found: TorchVersions,
    limits: { readonly answerMs: number; readonly rotateBytes: number },
  ) {
    this.#process = process;
    this.versions = found;
    this.#answerMs = limits.answerMs;
    this.#rotateBytes = limits.rotateBytes;
  }

  static async start(device: DeviceIdentity, options: CudnnOptions): Promise<CudnnAttention> {
    const { python, script = packagePath('bench', 'cudnn_attend.py') } = options;
    const { start, answer } = options.limitsMs ?? { start: 180_000, answer: 120_000 };
    // The same GPU, whatever number it has there.
    const chosen = device.uuid?.startsWith('GPU-') ? { CUDA_VISIBLE_DEVICES: device.uuid } : {};
    const process = new LineProcess(`cuDNN through ${python}`, python, [script], chosen);
    try {
      const found = parsed(process, await process.answer(start), versions);
      if (found.device !== device.name) {
        process.refuse(`torch on ${device.name}`, `torch on ${found.device}`);
      }
      const rotateBytes = Math.max(leastRotated, 4 * (device.cacheBytes ?? 0));
      return new CudnnAttention(process, found, { answerMs: answer, rotateBytes });
    } catch (error) {
      process.close();
      throw error;
    }
  }

  /** Makes the inputs of a shape, in place of those of the shape before. */
  async prepare(model: ModelShape, { sequences, tokens }: ShapeClass, seed: number): Promise<CudnnPrepared> {
    refuseUnlike(model, tokens);
    const { heads, kvHeads, headDim, scoreScale: scale } = model;
    const sizes = { batch: sequences, tokens, heads, kvHeads, headDim, scale };
    const request = { op: 'prepare', ...sizes, seed, rotateBytes: this.#rotateBytes };
    return parsed(this.#process, await this.#process.answer(this.#answerMs, request), prepared);
  }

  readonly sample = async (samples: number): Promise<readonly number[]> => {
    const { us } = parsed(this.#process, await this.#process.answer(this.#answerMs, { op: 'time', samples }), times);
    if (us.length !== samples) this.#process.refuse(`${samples} times`, `${us.length}`);
    return us;
  };

  close(): void {
    this.#process.close();
  }
}

/** cuDNN is called for plain attention over all tokens; another one's time would compare different work. */
function refuseUnlike(model: ModelShape, tokens: number): void {
  const { name, scoreCap } = model;
  const { slidingWindow: window = Number.POSITIVE_INFINITY } = layerShape(model, 0);
  const received =
    scoreCap !== undefined ? 'capped scores' : window < tokens ? `a window of ${window} tokens` : undefined;
  if (received === undefined) return;
  const hint = 'Compare with --baseline fp16.';
  throw new KvforgeError('missing-capability', {
    at: `cuDNN for ${name}`,
    expected: 'attention over all tokens',
    received,
    hint,
  });
}

function parsed<T>(process: LineProcess, line: string, form: z.ZodType<T>): T {
  let value: unknown;
  try {
    value = JSON.parse(line);
  } catch {
    return process.refuse('a JSON object', JSON.stringify(line.slice(0, 80)));
  }
  const reason = missing.safeParse(value).data?.missing;
  if (reason !== undefined) return process.refuse('torch with cuDNN on a CUDA device', reason);
  const failure = failed.safeParse(value).data?.failed;
  if (failure !== undefined) {
    // It goes on with the next shape.
    const hint = 'Leave the shape out, or free memory of the GPU.';
    throw new KvforgeError('missing-capability', {
      at: 'cuDNN',
      expected: 'attention of this shape',
      received: failure.replace(/\.$/, ''),
      hint,
    });
  }
  const result = form.safeParse(value);
  if (result.success) return result.data;
  const [issue] = result.error.issues;
  return process.refuse('an answer of its form', `${issue!.path.join('.') || 'an answer'}: ${issue!.message}`);
}
