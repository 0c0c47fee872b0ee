import { findCacheFolder } from '../../runtime/cacheFolder.js';
import { findAddon, loadAddon } from '../../runtime/cuda/addon.js';
import { type CudaDeviceFacts, factsOf, openDriver } from '../../runtime/cuda/driver.js';
import { openNvrtc } from '../../runtime/cuda/nvrtc.js';
import { type Check, found, guarded, missing } from './check.js';
import { programCheck } from './host.js';

/** What `--device cuda` needs, in the order in which it is needed. */
export async function cudaChecks(): Promise<readonly Check[]> {
  const addon = await guarded('cuda addon', addonCheck);
  const nvcc = await programCheck(
    'nvcc',
    'compiles the CUDA text ahead of time',
    'Optional: install the CUDA toolkit to compile the generated text.',
  );
  if (!addon.ok) {
    const waits = (name: string) => missing(name, 'not opened without the cuda addon', 'Get the addon first.');
    return [addon, waits('nvidia driver'), waits('nvrtc'), nvcc];
  }
  const nvrtc = await guarded('nvrtc', nvrtcCheck);
  const driver = await guarded('nvidia driver', driverCheck);
  if (!driver.ok) return [addon, driver, nvrtc, nvcc];
  return [addon, driver, ...(await gpuChecks(nvrtc.ok)), nvrtc, await cacheCheck(), nvcc];
}

async function addonCheck(): Promise<Check> {
  await loadAddon();
  return found('cuda addon', await findAddon());
}

async function driverCheck(): Promise<Check> {
  const { path, version } = await openDriver();
  return found('nvidia driver', `${version}, ${path}`);
}

async function nvrtcCheck(): Promise<Check> {
  const { path, version } = await openNvrtc(await loadAddon());
  return found('nvrtc', `${version}, ${path}`);
}

async function gpuChecks(compiles: boolean): Promise<readonly Check[]> {
  const devices = (await openDriver()).devices.map(factsOf);
  if (devices.length > 0) return devices.map((device) => gpuCheck(device, compiles));
  return [missing('gpu', 'none that the driver shows', 'Check nvidia-smi and CUDA_VISIBLE_DEVICES.')];
}

export function gpuCheck({ index, name, uuid, architecture, bytes }: CudaDeviceFacts, compiles: boolean): Check {
  const memory = `${(bytes / 2 ** 30).toFixed(1)} GiB`;
  const title = `gpu ${index}: ${name}`;
  if (architecture === undefined) {
    return missing(title, `${uuid}; ${memory}; older than compute capability 8.0`, 'Use another GPU.');
  }
  const chosen = `KVFORGE_GPU=${index} chooses it`;
  const check = found(title, [uuid, memory, architecture, chosen].join('; '));
  return compiles ? { ...check, runsOn: 'cuda' } : check;
}

async function cacheCheck(): Promise<Check> {
  const folder = await findCacheFolder(['cuda']);
  if (folder !== undefined) return found('cuda kernel cache', folder);
  return missing(
    'cuda kernel cache',
    'no folder for it that only you can write to',
    'Set XDG_CACHE_HOME to one; until then every process compiles its kernels again.',
  );
}
