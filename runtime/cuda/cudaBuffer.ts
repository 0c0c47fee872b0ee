import type { OwnBuffer } from '../checks.js';
import type { CudaDevice } from './cudaDevice.js';

/** Memory of a CUDA device. Freed by `release`, at the end of a `using` block, or when nothing refers to it any more. */
export class CudaBuffer implements OwnBuffer {
  released = false;

  constructor(
    readonly label: string,
    readonly bytes: number,
    readonly address: number,
    readonly device: CudaDevice,
  ) {}

  release(): void {
    if (this.released) return;
    this.released = true;
    this.device.dropBuffer(this);
  }

  [Symbol.dispose](): void {
    this.release();
  }
}
