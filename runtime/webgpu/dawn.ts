import { KvforgeError } from '../../dsl/errors.js';
import { describeAdapter, isSoftware, USED_FEATURES } from './adapter.js';
import { setUpVulkan, type VulkanSetup } from './swiftshader.js';

/** WebGPU for Node: the `webgpu` package, which is Dawn, and the search for an adapter. */

export type AdapterChoice = 'software' | 'hardware' | 'any';

/** An adapter as `kvforge doctor` lists it. */
export interface AdapterReport {
  readonly name: string;
  readonly backend: string;
  /** What a device opened on it says of itself. */
  readonly description: string;
  readonly software: boolean;
  readonly features: readonly string[];
  /** Least and greatest subgroup size; undefined where the adapter does not tell. */
  readonly subgroupSizes: readonly [number, number] | undefined;
  readonly sharedBytes: number;
  readonly buffersPerKernel: number;
  readonly bytesPerBinding: number;
}

interface Candidate {
  readonly backend: string;
  readonly name: string;
}

/** The first opens subgroups and timestamps that browsers gate; the second f16, which Dawn withholds on NVIDIA. */
const TOGGLES = 'enable-dawn-features=allow_unsafe_apis,vulkan_enable_f16_on_nvidia';

/** Timestamps are otherwise rounded to 65.536 us, which hides what a web page should not see; Node is no web page. */
const WITHHELD = 'disable-dawn-features=timestamp_quantization';

/**
 * Clears workgroup memory by a loop. Through the Vulkan extension SwiftShader unrolls it, one store a word, which for
 * 16 KiB takes its compiler 10 seconds instead of 50 ms.
 */
const WITHHELD_SWIFTSHADER = `${WITHHELD},use_vulkan_zero_initialize_workgroup_memory_extension`;

/** Backends with compute as WebGPU defines it; the OpenGL ones and the null one are left out. */
const BACKENDS = ['vulkan', 'metal', 'd3d12'];

/**
 * Every instance that was created, for good: Dawn crashes the process when one is collected while an object made from
 * it lives.
 */
const instances = new Map<string, GPU>();

const isSwiftShader = (name: string): boolean => name.startsWith('SwiftShader');

async function loadCreate(): Promise<(options: string[]) => GPU> {
  try {
    return (await import('webgpu')).create;
  } catch (cause) {
    const received = cause instanceof Error ? cause.message.split('\n')[0]! : String(cause);
    throw new KvforgeError(
      'missing-capability',
      {
        at: 'webgpu device',
        expected: 'the npm package webgpu',
        received: received.replace(/\.$/, ''),
        hint: 'Run npm install --save-dev webgpu @sparticuz/chromium.',
      },
      { cause },
    );
  }
}

async function instance(options: readonly string[]): Promise<GPU> {
  const create = await loadCreate();
  const key = options.join(' ');
  const known = instances.get(key);
  if (known !== undefined) return known;
  const made = create([TOGGLES, ...options]);
  instances.set(key, made);
  return made;
}

/** Dawn lists adapters in one place only: the error for an adapter name that does not exist. */
async function candidates(): Promise<readonly Candidate[]> {
  const gpu = await instance(['adapter=kvforge lists the adapters']);
  let text = '';
  try {
    await gpu.requestAdapter();
  } catch (error) {
    text = error instanceof Error ? error.message : String(error);
  }
  const found = new Map<string, Candidate>();
  for (const [line, backend, name] of text.matchAll(/backend: '([^']*)', name: '(.*)'/g)) {
    if (BACKENDS.includes(backend!)) found.set(line, { backend: backend!, name: name! });
  }
  return [...found.values()];
}

/** A fresh adapter: WebGPU gives one device per adapter object. */
async function requestAdapter({ backend, name }: Candidate): Promise<GPUAdapter | undefined> {
  const withheld = isSwiftShader(name) ? WITHHELD_SWIFTSHADER : WITHHELD;
  const gpu = await instance([`backend=${backend}`, `adapter=${name}`, withheld]);
  return (await gpu.requestAdapter()) ?? undefined;
}

async function allAdapters(): Promise<{ candidate: Candidate; adapter: GPUAdapter }[]> {
  const found = [];
  for (const candidate of await candidates()) {
    const adapter = await requestAdapter(candidate);
    if (adapter !== undefined) found.push({ candidate, adapter });
  }
  return found;
}

function noAdapter(choice: AdapterChoice, found: readonly string[], setup: VulkanSetup): KvforgeError {
  const expected = choice === 'any' ? 'an adapter' : `a ${choice} adapter`;
  const received = found.join(', ') || 'none';
  const refuse = (why: string, hint: string) =>
    new KvforgeError('missing-capability', { at: 'webgpu device', expected, received: received + why, hint });
  // A list that the user gave replaces all other drivers, so it comes first among the causes.
  if (setup.named !== undefined) {
    return refuse(` among the drivers of VK_DRIVER_FILES (${setup.named})`, 'Correct VK_DRIVER_FILES, or unset it.');
  }
  if (choice === 'hardware') {
    return refuse('', 'Install the driver of the GPU and its Vulkan part, or open the software adapter.');
  }
  const { why, fix } = setup.problem ?? { why: 'SwiftShader did not start', fix: 'Report it with the output above.' };
  return refuse(`: ${why}`, fix);
}

/**
 * Finds an adapter of the kind asked for: `any` takes hardware where there is some. Among software ones SwiftShader
 * comes first, since every machine can have the same one; `VK_DRIVER_FILES` picks another, such as lavapipe.
 */
export async function findAdapter(choice: AdapterChoice = 'any'): Promise<GPUAdapter> {
  const setup = await setUpVulkan();
  const found = await allAdapters();
  const hardware = found.filter(({ adapter }) => !isSoftware(adapter));
  const software = found.filter(({ adapter }) => isSoftware(adapter));
  const swiftShader = software.filter(({ candidate }) => isSwiftShader(candidate.name));
  const order = {
    hardware,
    software: [...swiftShader, ...software],
    any: [...hardware, ...swiftShader, ...software],
  };
  const chosen = order[choice][0];
  if (chosen === undefined) {
    throw noAdapter(
      choice,
      found.map(({ adapter }) => describeAdapter(adapter)),
      setup,
    );
  }
  return chosen.adapter;
}

/** Lists every adapter that Dawn finds here, software ones included. Empty when there is none. */
export async function webGpuAdapters(): Promise<readonly AdapterReport[]> {
  await setUpVulkan();
  return (await allAdapters()).map(({ candidate, adapter }) => {
    const { subgroupMinSize = 0, subgroupMaxSize = 0 } = adapter.info;
    return {
      ...candidate,
      description: describeAdapter(adapter),
      software: isSoftware(adapter),
      features: USED_FEATURES.filter((name) => adapter.features.has(name)),
      subgroupSizes: subgroupMinSize > 0 ? ([subgroupMinSize, subgroupMaxSize] as const) : undefined,
      sharedBytes: adapter.limits.maxComputeWorkgroupStorageSize,
      buffersPerKernel: adapter.limits.maxStorageBuffersPerShaderStage,
      bytesPerBinding: adapter.limits.maxStorageBufferBindingSize,
    };
  });
}
