import pc from 'picocolors';
import type { Check } from './checks/check.js';
import { cudaChecks } from './checks/cuda.js';
import { hostChecks } from './checks/host.js';
import { kernelChecks } from './checks/kernels.js';
import { deviceNames } from './devices.js';
import { type Context, exitCodes, type Outcome } from './output.js';

/** Lists what is here. Only a machine that can run no kernel at all fails. */
export async function doctor(
  context: Context,
  makeChecks = async (): Promise<readonly Check[]> =>
    (await Promise.all([hostChecks(), kernelChecks(), cudaChecks()])).flat(),
): Promise<Outcome> {
  const checks = await makeChecks();
  const devices = deviceNames.filter((name) => checks.some(({ runsOn }) => runsOn === name));
  const others = deviceNames.filter((name) => !devices.includes(name));
  const runs = devices.length > 0;
  const { green, yellow, red, dim } = pc.createColors(context.colors);
  const lines = checks.map(({ name, ok, detail, fix }) => {
    const line = `${ok ? green('ok     ') : yellow('missing')}  ${name}: ${detail}`;
    return fix === '' ? line : `${line}\n         ${dim(fix)}`;
  });
  const closing = runs
    ? green(
        `Kernels can run here on ${devices.join(' and ')}${others.length > 0 ? `, not on ${others.join(' or ')}` : ''}.`,
      )
    : red('No kernel can run here: install g++, or the webgpu package.');
  return {
    code: runs ? exitCodes.done : exitCodes.missing,
    json: {
      runsKernels: runs,
      devices,
      checks: checks.map(({ name, ok, detail, fix }) => ({ name, ok, detail, fix })),
    },
    text: `${lines.join('\n')}\n\n${closing}\n`,
  };
}
