#!/usr/bin/env node
import { endChildProcesses, OpenThings } from './interrupt.js';
import { type ErrorReport, errorText, exitCodes, jsonDocument } from './output.js';
import { runCli } from './program.js';

const args = process.argv.slice(2);
const write = process.stdout.write.bind(process.stdout);
const streams = {
  out: (text: string) => void write(text),
  err: (text: string) => void process.stderr.write(text),
  outIsTerminal: process.stdout.isTTY === true,
};
// A scheme file or a library may print; stdout belongs to the result alone.
process.stdout.write = process.stderr.write.bind(process.stderr) as typeof process.stdout.write;
// A reader that closes early, such as `head`, is no fault.
process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  if (error.code === 'EPIPE') process.exit(exitCodes.done);
  throw error;
});

const open = new OpenThings();
let interrupted = false;
for (const signal of ['SIGINT', 'SIGTERM'] as const) {
  process.on(signal, () => {
    // The second time the user will not wait for anything to close.
    if (interrupted) process.exit(exitCodes.interrupted);
    interrupted = true;
    void interrupt();
  });
}

for (const event of ['uncaughtException', 'unhandledRejection'] as const) {
  process.on(event, (error: unknown) => {
    if (interrupted) return;
    interrupted = true;
    void end(unawaited(error), exitCodes.failed);
  });
}

/** What a timer or a promise that nobody waits for has thrown: a scheme file's, most likely. */
function unawaited(error: unknown): ErrorReport {
  const message = error instanceof Error ? error.message : String(error);
  return {
    code: 'internal',
    message: `an error that nothing waited for: ${message}`,
    hint: 'If a scheme file starts timers or promises, remove them; otherwise report this with the output of kvforge doctor.',
  };
}

async function interrupt(): Promise<void> {
  await end({ code: 'interrupted', message: 'interrupted', hint: '' }, exitCodes.interrupted);
}

async function end(report: ErrorReport, exitCode: number): Promise<void> {
  endChildProcesses();
  await open.closeAll(1000);
  if (args.includes('--json')) streams.out(jsonDocument({ error: report }));
  else streams.err(errorText(report, String));
  process.exit(exitCode);
}

const code = await runCli(args, streams, open);
// A scheme file may leave timers behind, and an interruption exits by itself.
if (!interrupted) process.exit(code);
