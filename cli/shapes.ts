import { KvforgeError } from '../dsl/errors.js';
import type { ModelShape } from '../dsl/model.js';
import { type ShapeClass, shapeText } from '../runtime/tune/shapeClass.js';

/**
 * @param option that gives them: `--shapes`, or one of tokens alone
 * @throws KvforgeError `wrong-use` for a shape of more tokens than the model has positions
 */
export function checkShapes(shapes: readonly ShapeClass[], model: ModelShape, option: '--shapes' | '--encode'): void {
  for (const shape of shapes) {
    if (shape.tokens <= model.maxPositions) continue;
    throw new KvforgeError('wrong-use', {
      at: option,
      expected: `at most ${model.maxPositions} tokens (the positions of ${model.name})`,
      received: option === '--shapes' ? shapeText(shape) : String(shape.tokens),
      hint: 'Lower the tokens.',
    });
  }
}
