import pc from 'picocolors';
import { cudaChecks } from './checks/cuda.js';
import { hostChecks } from './checks/host.js';
import { kernelChecks } from './checks/kernels.js';
import { type Context, exitCodes, type Outcome } from './output.js';

/** Lists what is here. Only a machine that can run no kernel at all fails. */
export async function doctor(context: Context): Promise<Outcome> {
  const checks = (await Promise.all([hostChecks(), kernelChecks(), cudaChecks()])).flat();
  const runs = checks.some(({ runsKernels }) => runsKernels === true);
  const { green, yellow, red, dim } = pc.createColors(context.colors);
  const lines = checks.map(({ name, ok, detail, fix }) => {
    const line = `${ok ? green('ok     ') : yellow('missing')}  ${name}: ${detail}`;
    return fix === '' ? line : `${line}\n         ${dim(fix)}`;
  });
  const closing = runs
    ? green('Kernels can run here.')
    : red('No kernel can run here: install g++, or the webgpu package.');
  return {
    code: runs ? exitCodes.done : exitCodes.missing,
    json: { runsKernels: runs, checks: checks.map(({ name, ok, detail, fix }) => ({ name, ok, detail, fix })) },
    text: `${lines.join('\n')}\n\n${closing}\n`,
  };
}
