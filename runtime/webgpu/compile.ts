import type { KernelDescriptor } from '../../codegen/manifest.js';
import { KvforgeError } from '../../dsl/errors.js';
import type { KernelText } from '../device.js';

export interface WebGpuKernel {
  readonly descriptor: KernelDescriptor;
  readonly pipeline: GPUComputePipeline;
  readonly layout: GPUBindGroupLayout;
}

/** The sentence of a WebGPU message, without the trace of calls after it and without its full stop. */
export function firstLine(message: string): string {
  return message.trim().split('\n')[0]!.trim().replace(/\.$/, '');
}

/** Value of GPUShaderStage.COMPUTE, a global in browsers only. */
const COMPUTE = 0x4;

/**
 * Compiles kernels at the same time; a text with several entry points is parsed once. Every text is parsed before a
 * pipeline is made, and the first error in the order of the list is the one thrown.
 */
export async function compileKernels(gpu: GPUDevice, kernels: readonly KernelText[]): Promise<WebGpuKernel[]> {
  const modules = new Map<string, Promise<GPUShaderModule | KvforgeError>>();
  for (const { descriptor, source } of kernels) {
    const key = `${descriptor.file}\n${source}`;
    if (!modules.has(key)) modules.set(key, parse(gpu, descriptor.file, source));
  }
  const parsed = await allOrFirst(
    kernels.map(({ descriptor, source }) => modules.get(`${descriptor.file}\n${source}`)!),
  );
  return allOrFirst(kernels.map(({ descriptor }, i) => build(gpu, descriptor, parsed[i]!)));
}

async function allOrFirst<T>(promises: readonly Promise<T | KvforgeError>[]): Promise<T[]> {
  return (await Promise.all(promises)).map((result) => {
    if (result instanceof KvforgeError) throw result;
    return result;
  });
}

function compileFailed(at: string, expected: string, received: string, hint: string, cause?: unknown): KvforgeError {
  return new KvforgeError('compile-failed', { at, expected, received, hint }, { cause });
}

async function parse(gpu: GPUDevice, file: string, source: string): Promise<GPUShaderModule | KvforgeError> {
  gpu.pushErrorScope('validation');
  const module = gpu.createShaderModule({ label: file, code: source });
  // Popped in the turn of the push: scopes are a stack, and other calls push theirs between turns.
  const [scope, info] = await Promise.all([gpu.popErrorScope(), module.getCompilationInfo()]);
  const error = info.messages.find((message) => message.type === 'error');
  if (error !== undefined) {
    const line = source.split('\n')[error.lineNum - 1]?.trim() ?? '';
    const at = error.lineNum > 0 ? `${file}:${error.lineNum}:${error.linePos}` : file;
    const hint = line === '' ? 'Correct the template of the kernel.' : `Correct what printed this line: ${line}`;
    // The first line says what is wrong; those after it list candidates, and stay with the cause.
    return compileFailed(at, 'WGSL that compiles', firstLine(error.message), hint, new Error(error.message));
  }
  if (scope !== null)
    return compileFailed(file, 'WGSL that compiles', firstLine(scope.message), 'Correct the template of the kernel.');
  return module;
}

async function build(
  gpu: GPUDevice,
  descriptor: KernelDescriptor,
  module: GPUShaderModule,
): Promise<WebGpuKernel | KvforgeError> {
  const { entry, file } = descriptor;
  // Explicit, not 'auto': an automatic layout drops bindings that the entry point does not use.
  const layout = gpu.createBindGroupLayout({
    label: entry,
    entries: descriptor.bindings.map(({ access }, binding) => ({
      binding,
      visibility: COMPUTE,
      buffer: { type: access === 'read' ? 'read-only-storage' : 'storage' },
    })),
  });
  try {
    const pipeline = await gpu.createComputePipelineAsync({
      label: entry,
      layout: gpu.createPipelineLayout({ label: entry, bindGroupLayouts: [layout] }),
      compute: { module, entryPoint: entry },
    });
    return { descriptor, pipeline, layout };
  } catch (error) {
    const message = error instanceof Error ? error.message : String(error);
    const invalid = (error as GPUPipelineError).reason === 'validation';
    return compileFailed(
      `${file}: ${entry}`,
      'an entry point that matches its manifest',
      firstLine(message),
      invalid
        ? 'Generate the kernel and its manifest together again.'
        : 'Report it with the text of the kernel: the driver refused a valid shader.',
      error,
    );
  }
}
